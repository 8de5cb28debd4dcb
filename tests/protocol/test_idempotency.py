"""Idempotency keys with Dramatiq's worker on a real server: who runs, who waits, who is skipped."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import Permanent
from service.job import Job
from service.middleware.context import JobContext, current_job_or_none
from tests.protocol.test_worker import end_of, find, has_ended, states_of
from tests.servers import eventually

StartWorker = Callable[..., Worker]
QUEUE = "default"


def declare(broker: RedisBroker, function: Callable[..., Any], **options: Any) -> Any:
    declare_actor: Any = dramatiq.actor
    return declare_actor(function, actor_class=Job, broker=broker, **{"idempotency_key": "{ref}", **options})


def context() -> JobContext:
    found = current_job_or_none()
    assert found is not None
    return found


def record_of(broker: RedisBroker, message: Message[Any]) -> dict[str, str]:
    found = broker.find_record(message.message_id)
    assert found is not None
    return found


def left_of_keys(broker: RedisBroker) -> dict[str, Any]:
    keys = Keys(broker.namespace, QUEUE)
    claims = [value for value in broker.client.hvals(keys.once) if value.startswith(b"claimed")]
    return {"waiting": broker.client.zrange(keys.once_waiting, 0, -1), "claims": claims}


def test_of_many_sends_of_one_key_one_runs_and_the_others_have_its_result(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> dict[str, str]:
        runs.append(ref)
        time.sleep(0.2)
        return {"ref": ref, "run": str(len(runs))}

    act = declare(broker, work)
    messages = [act.send(ref="a") for _ in range(20)]
    start_worker(threads=8)
    ends = [end_of(broker, message) for message in messages]
    assert [end.state.value for end in ends] == ["succeeded"] * 20
    assert [end.result for end in ends] == [{"ref": "a", "run": "1"}] * 20
    assert runs == ["a"]
    skipped = [record_of(broker, message).get("skipped") for message in messages]
    assert (skipped.count("true"), skipped.count(None)) == (19, 1)
    assert left_of_keys(broker) == {"waiting": [], "claims": []}
    late = act.send(ref="a")
    assert end_of(broker, late).result == {"ref": "a", "run": "1"}
    assert states_of(broker, late) == ["pending", "running", "succeeded"]
    assert runs == ["a"]


def test_other_keys_and_jobs_without_one_are_no_duplicates(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str | None] = []

    def work(*, ref: str | None = None) -> None:
        runs.append(ref)

    act = declare(broker, work)
    messages = [act.send(ref=ref) for ref in ("a", "ab", "a ", "é", None, None, "a", "é")]
    start_worker()
    for message in messages:
        end_of(broker, message)
    assert sorted(runs, key=str) == [None, None, "a", "a ", "ab", "é"]


def test_an_actor_may_have_its_own_answer_for_duplicates(broker: RedisBroker, start_worker: StartWorker) -> None:
    def work(*, ref: str) -> str:
        return ref

    act = declare(broker, work, duplicate_result={"status": "already_sent", "skipped": True})
    start_worker()
    assert end_of(broker, act.send(ref="a")).result == "a"
    assert end_of(broker, act.send(ref="a")).result == {"status": "already_sent", "skipped": True}


def test_one_that_meets_a_running_holder_waits_without_a_thread_or_an_attempt(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    release = threading.Event()
    others: list[int] = []

    def work(*, ref: str) -> str:
        release.wait(20)
        return ref

    @dramatiq.actor(broker=broker)
    def other(number: int) -> None:
        others.append(number)

    act = declare(broker, work)
    start_worker(threads=2)
    first = act.send(ref="a")
    eventually(lambda: find(broker, first).state.value == "running")
    second = act.send(ref="a")
    try:
        eventually(lambda: find(broker, second).state.value == "waiting")
        assert find(broker, second).attempt == 0
        for number in range(50):
            other.send(number)
        eventually(lambda: len(others) == 50)
        eventually(lambda: broker.wire.backlog(QUEUE) == 2)  # a waiting job is part of the backlog
        assert states_of(broker, second) == ["pending", "waiting"]
    finally:
        release.set()
    assert end_of(broker, second).result == "a"
    assert states_of(broker, second) == ["pending", "waiting", "running", "succeeded"]


def test_a_failed_holder_frees_its_key_at_once_and_waits_when_its_retry_meets_another(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    release = threading.Event()
    runs: list[tuple[str, int]] = []

    def work(*, ref: str) -> str:
        job = context()
        runs.append((job.job_id, job.attempt))
        if len(runs) == 1:
            eventually(lambda: find(broker, second).state.value == "waiting")
            raise ConnectionError("gone")
        release.wait(20)
        return job.job_id

    act = declare(broker, work, min_backoff=200, max_backoff=200)
    first, second = act.message(ref="a"), act.message(ref="a")
    broker.enqueue(first)
    start_worker(threads=2)
    eventually(lambda: len(runs) == 1)
    broker.enqueue(second)
    try:
        eventually(lambda: len(runs) == 2)
        assert runs[1] == (second.message_id, 1), "the second runs while the first waits for its retry"
        eventually(lambda: states_of(broker, first)[-1] == "waiting")
    finally:
        release.set()
    assert end_of(broker, first).result == second.message_id
    assert len(runs) == 2


def test_waiting_jobs_take_over_in_their_order(broker: RedisBroker, start_worker: StartWorker) -> None:
    order: list[int] = []
    begun, release = threading.Event(), threading.Event()

    def work(*, ref: str, number: int) -> None:
        begun.set()
        release.wait(20)
        order.append(number)
        raise Permanent("never")

    act = declare(broker, work)
    act.send(ref="a", number=0)
    start_worker(threads=2)
    assert begun.wait(10)
    priorities = [9, 5, 5, 5, 0]
    waiting = [
        act.send_with_options(kwargs={"ref": "a", "number": number}, priority=priority)
        for number, priority in enumerate(priorities, 1)
    ]
    keys = Keys(broker.namespace, QUEUE)
    eventually(lambda: broker.client.zcard(keys.once_waiting) == 5)
    release.set()
    for message in waiting:
        end_of(broker, message)
    assert order == [0, 5, 2, 3, 4, 1]


def test_a_key_is_free_again_when_its_time_is_over(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> None:
        runs.append(ref)

    act = declare(broker, work, idempotency_ttl=0.6)
    start_worker()
    end_of(broker, act.send(ref="a"))
    end_of(broker, act.send(ref="a"))
    assert runs == ["a"]
    time.sleep(0.7)
    end_of(broker, act.send(ref="a"))
    assert runs == ["a", "a"]


def test_what_is_over_is_forgotten(broker: RedisBroker, start_worker: StartWorker) -> None:
    def work(*, ref: str) -> None: ...

    act = declare(broker, work, idempotency_ttl=0.2)
    for number in range(300):
        act.send(ref=str(number))
    start_worker()
    keys = Keys(broker.namespace, QUEUE)
    broker.join(QUEUE, timeout=20_000)
    assert broker.client.hlen(keys.once) <= 300
    time.sleep(0.3)

    def nothing_is_kept() -> bool:
        broker.pass_on(QUEUE)  # as an idle worker asks
        return not broker.client.exists(keys.once) and not broker.client.exists(keys.once_until)

    eventually(nothing_is_kept)


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_failure_is_remembered_where_the_actor_says_so(
    broker: RedisBroker, start_worker: StartWorker, is_remembered: bool
) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> None:
        runs.append(context().job_id)
        raise Permanent("declined")

    act = declare(broker, work, remember_failure=is_remembered)
    start_worker()
    first = act.send(ref="a")
    end_of(broker, first)
    second = act.send(ref="a")
    end = end_of(broker, second)
    assert end.state.value == "dead"
    assert end.error is not None
    assert end.error["message"] == "declined"
    assert (len(runs), record_of(broker, second).get("skipped")) == ((1, "true") if is_remembered else (2, None))
    letters = broker.client.hkeys(Keys(broker.namespace, QUEUE).dead_messages)
    assert {second.message_id.encode(), first.message_id.encode()} == set(letters)
    broker.enqueue(first)  # as whoever replays a dead letter
    eventually(lambda: runs.count(first.message_id) == 2)


def test_a_job_knows_its_key_and_a_token_that_rises_over_its_attempts(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    seen: list[tuple[str | None, int]] = []

    def work(*, ref: str) -> None:
        seen.append((context().idempotency_key, context().fencing_token))
        if len(seen) < 3:
            raise ConnectionError("gone")

    act = declare(broker, work, min_backoff=10, max_backoff=10)
    start_worker()
    end_of(broker, act.send(ref="a"))
    assert [key for key, _ in seen] == ["a"] * 3
    tokens = [token for _, token in seen]
    assert tokens == sorted(set(tokens))


def test_a_plain_actor_takes_a_key_for_a_send(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker)
    def work(number: int) -> int:
        runs.append(number)
        return number

    start_worker()
    for number in (1, 2):
        assert end_of(broker, work.send_with_options(args=(number,), idempotency_key="k")).result == 1
    assert runs == [1]


def test_a_purged_queue_keeps_no_key(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> None:
        runs.append(ref)

    act = declare(broker, work)
    for _ in range(2):
        message = act.send(ref="a")
        if not runs:
            start_worker()
        eventually(lambda message=message: has_ended(broker, message))
        broker.flush(QUEUE)
    assert runs == ["a", "a"]


def test_a_result_is_kept_as_it_was(broker: RedisBroker, start_worker: StartWorker) -> None:
    value = {"text": "ü \x00 \n\t \U0001f600", "list": [1.5, None, True]}

    def work(*, ref: str) -> object:
        return value

    act = declare(broker, work)
    start_worker()
    first, second = (end_of(broker, act.send(ref="a\u00e9 b:c")) for _ in range(2))
    assert json.dumps(first.result) == json.dumps(second.result)


@pytest.mark.parametrize(("fails", "state"), [(True, "dead"), (False, "succeeded")])
def test_what_has_waited_for_its_key_for_too_long_does_not_run_and_may_still_be_a_duplicate(
    broker: RedisBroker, start_worker: StartWorker, fails: bool, state: str
) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> str:
        runs.append(context().job_id)
        time.sleep(0.4)
        if fails:
            raise Permanent("no")
        return "done"

    act = declare(broker, work, expires_ms=300)
    start_worker()
    first = act.send(ref="a")
    eventually(lambda: runs)
    second = act.send(ref="a")
    assert end_of(broker, second).state.value == state
    assert runs == [first.message_id]
    assert record_of(broker, second).get("reason") == ("expired" if fails else None)
