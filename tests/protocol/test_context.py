"""What a running job says of itself, and what a later attempt and whoever looks find of it."""

import json
import threading
import time
from typing import Any

import dramatiq
import pytest
import redis

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.lost import LeaseLost
from service.errors import NoteError, PayloadError
from service.job import Job, current_job
from service.middleware.defaults import WrongOptions
from service.state.states import State
from tests.protocol.test_worker import StartWorker, end_of, states_of
from tests.servers import eventually


def declared(broker: RedisBroker, function: Any, **options: Any) -> Any:
    options = {"max_retries": 1, "min_backoff": 1, "max_backoff": 1, **options}
    return dramatiq.actor(function, broker=broker, actor_class=Job, **options)


def notes_of(broker: RedisBroker, message: Any, kind: str) -> list[Any]:
    stream = broker.client.xrange(Keys(broker.namespace, message.queue_name).events)
    found = [fields for _, fields in stream if fields[b"kind"] == kind.encode()]
    return [
        json.loads(fields[message.message_id.encode()].split(b" ", 2)[2])
        for fields in found
        if message.message_id.encode() in fields
    ]


def test_progress_is_seen_while_the_job_runs_the_newest_only_and_gone_with_it(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    go = threading.Event()

    def work() -> None:
        for done in range(1001):
            current_job().progress(done, 1000, f"row {done}")
        go.wait(10)

    actor = declared(broker, work)
    start_worker()
    message = actor.send()
    newest = {"done": 1000, "total": 1000, "note": "row 1000"}
    eventually(lambda: json.loads(broker.find_progress(message.message_id, "default") or "null") == newest)
    assert len(notes_of(broker, message, "progress")) < 50
    go.set()
    end_of(broker, message)
    assert broker.find_progress(message.message_id, "default") is None
    assert states_of(broker, message) == ["pending", "running", "succeeded"], "a note changes no state"


def test_lines_are_kept_in_their_order_with_attempt_and_fields_also_of_a_job_that_ends_at_once(
    broker: RedisBroker, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def work() -> None:
        job = current_job()
        for number in range(30):
            job.log("step", number=number, name="n", message="of its own")
        if job.attempt == 1:
            raise ValueError("again")

    actor = declared(broker, work)
    start_worker()
    message = actor.send()
    end_of(broker, message)

    def lines() -> list[Any]:
        return [line for some in notes_of(broker, message, "log") for line in some]

    eventually(lambda: len(lines()) == 60)
    assert [(line["attempt"], line["fields"]["number"]) for line in lines()] == [
        (attempt, number) for attempt in (1, 2) for number in range(30)
    ]
    assert lines()[0]["fields"] == {"number": 0, "name": "n", "message": "of its own"}
    assert sum(record.getMessage() == "step" for record in caplog.records) == 60


def test_a_later_attempt_goes_on_from_the_checkpoint(broker: RedisBroker, start_worker: StartWorker) -> None:
    began: list[Any] = []

    def work() -> None:
        job = current_job()
        row = job.resumed_from or {"row": 0}
        began.append(row)
        job.checkpoint({"row": row["row"] + 100, "part": ["a", None]})
        assert job.resumed_from["row"] == row["row"] + 100
        if job.attempt < 3:
            raise ValueError("again")

    actor = declared(broker, work, max_retries=2)
    start_worker()
    end_of(broker, actor.send())
    assert [each["row"] for each in began] == [0, 100, 200]
    assert not broker.client.exists(Keys(broker.namespace, "default").checkpoints)


def test_a_run_whose_lease_is_lost_keeps_nothing_and_is_interrupted(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    go, ended = threading.Event(), threading.Event()
    raised: list[type[BaseException]] = []

    def work() -> None:
        job = current_job()
        job.checkpoint("mine")
        go.wait(10)
        for act in (lambda: job.checkpoint("stale"), job.heartbeat):
            try:
                act()
            except LeaseLost as error:
                raised.append(type(error))
        job.progress(1, 2)
        ended.set()

    actor = declared(broker, work)
    start_worker()
    message = actor.send()
    keys = Keys(broker.namespace, "default")
    eventually(lambda: broker.client.hget(keys.checkpoints, message.message_id) == b'"mine"')
    broker.client.hset(keys.leases, message.message_id, f"999999 {int(time.time() * 1000)} another")
    go.set()
    assert ended.wait(10)
    assert raised == [LeaseLost, LeaseLost]
    assert broker.client.hget(keys.checkpoints, message.message_id) == b'"mine"'
    time.sleep(0.3)
    assert not broker.client.exists(keys.progress)


def test_a_heartbeat_asks_redis_once_a_second_at_most(
    broker: RedisBroker, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def extend(lease: Any) -> bool:
        asked.append(lease)
        return True

    monkeypatch.setattr(broker, "extend", extend)

    def work() -> None:
        for _ in range(1000):
            current_job().heartbeat()

    actor = declared(broker, work)
    start_worker()
    end_of(broker, actor.send())
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda job: job.checkpoint(object()), "JSON"),
        (lambda job: job.checkpoint(float("nan")), "JSON"),
        (lambda job: job.checkpoint("x" * 70_000), "65536"),
        (lambda job: job.log("m", file=object()), "JSON"),
    ],
)
def test_what_has_no_json_form_is_refused_in_the_job(
    broker: RedisBroker, start_worker: StartWorker, act: Any, words: str
) -> None:
    def work() -> None:
        with pytest.raises(NoteError, match=words):
            act(current_job())

    actor = declared(broker, work, max_retries=0)
    start_worker()
    assert end_of(broker, actor.send()).state is State.SUCCEEDED


def test_progress_and_lines_outlast_an_outage(
    broker: RedisBroker, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [redis.ConnectionError("cut")] * 2
    note = broker.wire.note

    def cut(queue: str, notes: Any) -> list[str]:
        if failures:
            raise failures.pop()
        return note(queue, notes)

    monkeypatch.setattr(broker.wire, "note", cut)
    monkeypatch.setattr("service.broker.notes.RETRY_SECONDS", 0.05)
    go = threading.Event()

    def work() -> None:
        current_job().progress(1)
        current_job().log("one")
        current_job().log("two")
        go.wait(10)

    actor = declared(broker, work)
    start_worker()
    message = actor.send()
    eventually(lambda: broker.find_progress(message.message_id, "default"))
    assert [line["message"] for some in notes_of(broker, message, "log") for line in some] == ["one", "two"]
    assert not failures
    go.set()
    end_of(broker, message)


def test_a_jobs_sends_are_for_its_tenant_and_of_its_trace(broker: RedisBroker, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    def second() -> None:
        seen.append((current_job().tenant, current_job().inherited))

    second_actor = declared(broker, second)

    def first() -> None:
        second_actor.send()
        second_actor.send_with_options(tenant="other")

    first_actor = declared(broker, first)
    start_worker(threads=1)
    first_actor.send_with_options(tenant="acme", traceparent="00-a-b-01")
    broker.join("default", timeout=10_000)
    assert seen == [
        ("acme", {"tenant": "acme", "traceparent": "00-a-b-01"}),
        ("other", {"tenant": "other", "traceparent": "00-a-b-01"}),
    ]
    for wrong in (7, "x" * 257):
        with pytest.raises((WrongOptions, PayloadError), match="tenant"):
            first_actor.send_with_options(tenant=wrong)
