"""Events become rows: in any order, twice, and through the death of the projector."""

import logging
import random
import string
import threading
import time
import uuid
from datetime import UTC

import dramatiq
import pytest
from dramatiq.message import Message
from sqlalchemy import Engine, func, select, text

from service.broker import RedisBroker, events
from service.broker.dead_letters import DeadLetters
from service.broker.delivery import Delivery
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.notes import Note
from service.broker.once import remembered
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Succeeded
from service.broker.queue_acts import QueueActs
from service.broker.settlement import settlement_of
from service.state.database import engine_for
from service.state.history import History
from service.state.projector import Entry, Projector
from service.state.states import State
from service.state.tables import jobs
from tests.servers import RedisServer, eventually


@pytest.fixture
def projector(broker: RedisBroker, engine: Engine) -> Projector:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name="email")
    def act() -> None: ...

    return Projector(broker, engine)


def project(projector: Projector, engine: Engine) -> None:
    with engine.connect() as connection:
        while projector.project_batch(connection):
            pass


def send(broker: RedisBroker) -> Message:
    message: Message = Message(queue_name="email", actor_name="t.act", args=(), kwargs={}, options={})
    broker.send(message)
    return message


def start(broker: RedisBroker) -> Delivery:
    [delivery] = broker.fetch("email", 1)[0]
    return delivery


def settle(broker: RedisBroker, delivery: Delivery, outcome: Outcome) -> None:
    delivery.outcome = outcome
    broker.settle("email", [settlement_of(delivery)])


def run(broker: RedisBroker, *, fails: bool = False) -> Delivery:
    delivery = start(broker)
    settle(broker, delivery, Dead(Failure("ValueError", "no\x00", "trace")) if fails else Succeeded('{"b":1,"a":2}'))
    return delivery


def row(engine: Engine, message: Message) -> dict:
    with engine.connect() as connection:
        found = connection.execute(select(jobs).where(jobs.c.job_id == uuid.UUID(message.message_id)))
        return dict(found.mappings().one())


def stream_length(broker: RedisBroker) -> int:
    return broker.client.xlen(Keys(broker.namespace, "email").events)


def test_a_finished_job_is_a_whole_row_and_leaves_nothing_in_redis(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    message = send(broker)
    run(broker)
    [(last_id, _)] = broker.client.xrevrange(Keys(broker.namespace, "email").events, count=1)
    project(projector, engine)
    stored = row(engine, message)
    assert (stored["state"], stored["attempt"]) == ("succeeded", 1)
    assert stored["sequence"] == events.sequence_of(last_id.decode()), "the last of its three events made the row"
    assert list(stored["result"]) == ["b", "a"], "keys keep their order"
    assert stored["created_at"] <= stored["started_at"] <= stored["completed_at"]
    assert stored["created_at"].tzinfo is not None
    assert stream_length(broker) == 0
    assert broker.find_record(message.message_id) is None


def test_a_duplicate_is_stored_as_skipped(broker: RedisBroker, engine: Engine, projector: Projector) -> None:
    first, second = (Message("email", "t.act", (), {}, {"idempotency_key": "k"}) for _ in range(2))
    broker.send(first)
    delivery = start(broker)
    broker.send(second)
    assert broker.fetch("email", 1)[0] == []
    project(projector, engine)
    assert row(engine, second)["state"] == "waiting"
    delivery.outcome = Succeeded("7")
    broker.settle("email", [remembered(settlement_of(delivery), {})])
    assert broker.fetch("email", 1)[0] == []
    broker.settle("email", [broker.settler._waiting.popleft()])
    found = History(engine, broker).find(uuid.UUID(second.message_id))
    project(projector, engine)
    assert found is not None
    for job in (row(engine, second), {"state": found.state, "result": found.result, "skipped": found.skipped}):
        assert (job["state"], job["result"], job["skipped"]) == ("succeeded", 7, True)
    assert not row(engine, first)["skipped"]


def test_every_transition_is_logged_once(
    broker: RedisBroker, engine: Engine, projector: Projector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    message = send(broker)
    run(broker)
    project(projector, engine)
    project(projector, engine)
    logged = [
        (record.job_id, record.status)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "Job status updated"
    ]
    assert logged == [(message.message_id, status) for status in ("pending", "running", "succeeded")]


def test_a_burst_is_stored_whatever_the_size_of_its_entries(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    messages = [Message("email", "t.act", (), {}, {}) for _ in range(7000)]
    assert not broker.send_many(messages).failed
    project(projector, engine)
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(jobs)).scalar_one() == 7000
    assert stream_length(broker) == 0


def test_what_a_running_job_says_leaves_the_stream_and_changes_no_state(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    message = send(broker)
    delivery = start(broker)
    notes = [Note(delivery.lease, "progress", '{"done": 1}'), Note(delivery.lease, "log", "[]")]
    assert broker.wire.note(delivery.lease.queue, notes) == []
    project(projector, engine)
    assert stream_length(broker) == 0
    assert row(engine, message)["state"] == "running"


def test_what_was_stored_and_not_yet_trimmed_is_not_stored_or_logged_again(
    broker: RedisBroker,
    engine: Engine,
    projector: Projector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = send(broker)
    run(broker)
    with monkeypatch.context() as killed, engine.connect() as connection:
        # As after a kill between the commit and the trim.
        killed.setattr(projector, "_forget", lambda entries: None)
        assert projector.project_batch(connection) == 3
    before = row(engine, message)
    assert stream_length(broker) == 3
    caplog.set_level(logging.INFO)
    project(projector, engine)
    assert stream_length(broker) == 0
    assert row(engine, message) == before
    assert not [record for record in caplog.records if record.getMessage() == "Job status updated"]


def test_an_entry_that_nobody_can_read_does_not_hold_up_the_rest(
    broker: RedisBroker, engine: Engine, projector: Projector, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Keys(broker.namespace, "email").events
    broker.client.xadd(stream, {"state": "odd"})
    broker.client.xadd(stream, {b"\xff": b"\xff"})
    message = send(broker)
    run(broker)
    project(projector, engine)
    assert row(engine, message)["state"] == "succeeded"
    assert stream_length(broker) == 0
    assert len([record for record in caplog.records if "can't be read" in record.getMessage()]) == 2


def test_an_entry_that_nobody_can_read_is_dropped_also_where_it_is_the_only_one(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    broker.client.xadd(Keys(broker.namespace, "email").events, {"state": "odd"})
    project(projector, engine)
    assert stream_length(broker) == 0


def test_a_name_that_is_too_long_for_an_index_holds_up_no_other_job(
    broker: RedisBroker, engine: Engine, projector: Projector, caplog: pytest.LogCaptureFixture
) -> None:
    long = "".join(random.choices(string.ascii_letters, k=6000))
    sent = [Message("email", name, (), {}, {}) for name in ("a", long, "c")]
    broker.send_many(sent)
    project(projector, engine)
    assert [row(engine, message)["type"] for message in (sent[0], sent[2])] == ["a", "c"]
    assert stream_length(broker) == 0
    assert "can't be stored" in caplog.text


def test_a_job_is_stored_whose_time_no_calendar_has(broker: RedisBroker, engine: Engine, projector: Projector) -> None:
    message: Message = Message("email", "t.act", (), {}, {})
    broker.send(message, delay_ms=10**16)
    found = History(engine, broker).find(uuid.UUID(message.message_id))
    project(projector, engine)
    stored = row(engine, message)
    assert found
    assert (found.state, stored["state"]) == ("scheduled", "scheduled")
    assert found.run_at == stored["run_at"]
    assert stored["run_at"].year == 9999


def test_numbers_that_json_does_not_have_do_not_keep_a_job_from_being_stored(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    message = send(broker)
    stream = Keys(broker.namespace, "email").events
    [(entry_id, fields)] = broker.client.xrange(stream)
    name = message.message_id.encode()
    # As the encoder of somebody else writes them.
    odd = fields[name].replace(b'"kwargs":{}', b'"kwargs":{"x":NaN,"y":[-Infinity]}')
    broker.client.xdel(stream, entry_id)
    broker.client.xadd(stream, {**fields, name: odd})
    project(projector, engine)
    assert row(engine, message)["payload"] == {"x": "NaN", "y": ["-Infinity"]}


def test_a_job_that_nobody_can_read_does_not_hold_up_those_that_share_its_entry(
    broker: RedisBroker, engine: Engine, projector: Projector, caplog: pytest.LogCaptureFixture
) -> None:
    sent = [Message(queue_name="email", actor_name=name, args=(), kwargs={}, options={}) for name in ("a", "b", "c")]
    rows = [broker.row(message, None) for message in sent]
    rows[1] = rows[1]._replace(actor="b\x00")  # `send` refuses it
    broker.wire.enqueue("email", rows, broker.producer.next_send())
    project(projector, engine)
    assert [row(engine, message)["type"] for message in (sent[0], sent[2])] == ["a", "c"]
    assert stream_length(broker) == 0
    assert len([record for record in caplog.records if "can't be read" in record.getMessage()]) == 1


def test_a_further_copy_of_a_job_leaves_nothing_in_redis_either(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    message = send(broker)
    broker.send(message)
    run(broker)
    run(broker)
    project(projector, engine)
    assert row(engine, message)["state"] == "succeeded"
    assert not broker.client.exists(Keys(broker.namespace, "email").finals)


def test_a_nul_in_an_error_does_not_keep_the_job_from_ending(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    message = send(broker)
    settle(broker, start(broker), Dead(Failure.of(ValueError("a\x00b \ud800 c\\u0000d"))))
    project(projector, engine)
    stored = row(engine, message)
    assert stored["state"] == "dead"
    assert stored["error"]["message"].startswith("a\\u0000b")


def test_a_replayed_job_is_shown_in_its_new_life_at_every_step(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    history, letters = History(engine, broker), DeadLetters(broker)
    message = send(broker)
    delivery = start(broker)
    settle(broker, delivery, RetryLater(delivery.copy_for_retry(""), 0, Failure("ValueError", "no", "")))
    run(broker, fails=True)

    def seen() -> tuple[str, int]:
        found = history.find(uuid.UUID(message.message_id))
        assert found is not None
        return found.state.value, found.attempt

    project(projector, engine)
    assert seen() == ("dead", 2)
    letter = letters.get(message.message_id)
    assert letter is not None
    letters.replay(letter, by="ada")
    assert seen() == ("pending", 0), "also before the projector knows"
    project(projector, engine)
    assert seen() == ("pending", 0)
    stored = row(engine, message)
    assert (stored["started_at"], stored["completed_at"], stored["error"]) == (None, None, None)
    run(broker)
    assert seen() == ("succeeded", 1)
    project(projector, engine)
    assert seen() == ("succeeded", 1)
    assert (row(engine, message)["state"], row(engine, message)["attempt"]) == ("succeeded", 1)
    assert not broker.client.exists(Keys(broker.namespace, "email").finals)


def test_two_lives_in_one_batch_leave_the_second(broker: RedisBroker, engine: Engine, projector: Projector) -> None:
    message = send(broker)
    delivery = start(broker)
    settle(broker, delivery, RetryLater(delivery.copy_for_retry(""), 0, Failure("ValueError", "no", "")))
    project(projector, engine)
    run(broker, fails=True)
    DeadLetters(broker).replay_many(by="ada")
    run(broker)
    project(projector, engine)
    assert (row(engine, message)["state"], row(engine, message)["attempt"]) == ("succeeded", 1)


def test_a_final_event_that_is_newer_than_what_was_stored_is_kept(
    broker: RedisBroker, engine: Engine, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = send(broker)
    run(broker, fails=True)
    forget = projector._forget

    def replayed_meanwhile(entries: list[Entry]) -> None:
        time.sleep(0.002)
        DeadLetters(broker).replay_many(by="ada")
        run(broker)
        forget(entries)

    with monkeypatch.context() as slow, engine.connect() as connection:
        slow.setattr(projector, "_forget", replayed_meanwhile)
        projector.project_batch(connection)
    assert row(engine, message)["state"] == "dead"
    found = History(engine, broker).find(uuid.UUID(message.message_id))
    assert found is not None
    assert found.state is State.SUCCEEDED
    project(projector, engine)
    assert row(engine, message)["state"] == "succeeded"
    assert not broker.client.exists(Keys(broker.namespace, "email").finals)


def test_one_projector_works_and_another_takes_over(broker: RedisBroker, engine: Engine, projector: Projector) -> None:
    second = Projector(broker, engine)
    stops = [threading.Event(), threading.Event()]
    threads = [
        threading.Thread(target=one.run, args=(stop,)) for one, stop in zip((projector, second), stops, strict=True)
    ]
    try:
        threads[0].start()
        eventually(lambda: projector.is_ready)
        threads[1].start()
        eventually(lambda: second.is_ready)
        message = send(broker)
        run(broker)
        eventually(lambda: stream_length(broker) == 0)
        assert row(engine, message)["state"] == "succeeded"
        stops[0].set()
        threads[0].join(10)
        message = send(broker)
        run(broker)
        eventually(lambda: stream_length(broker) == 0)
        assert row(engine, message)["state"] == "succeeded"
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(10)


def test_the_projector_goes_on_after_its_connection_was_cut(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: projector.is_ready)
        with engine.connect() as connection:
            others = "pid <> pg_backend_pid() AND datname = current_database()"
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        message = send(broker)
        run(broker)
        eventually(lambda: stream_length(broker) == 0)
        assert row(engine, message)["state"] == "succeeded"
    finally:
        stop.set()
        thread.join(10)


def test_a_retry_is_shown_as_it_is(broker: RedisBroker, engine: Engine, projector: Projector) -> None:
    message = send(broker)
    delivery = start(broker)
    settle(broker, delivery, RetryLater(delivery.copy_for_retry(""), 1000, Failure("ValueError", "no", "")))
    project(projector, engine)
    stored = row(engine, message)
    assert (stored["state"], stored["completed_at"]) == ("retrying", None)
    assert stored["error"]["message"] == "no"
    assert broker.find_record(message.message_id) is not None


def test_a_job_is_found_at_once_and_through_every_step_of_the_projector(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    history = History(engine, broker)
    message = send(broker)
    job_id = uuid.UUID(message.message_id)

    def state() -> State | None:
        found = history.find(job_id)
        return found and found.state

    assert state() is State.PENDING
    project(projector, engine)
    assert state() is State.PENDING
    run(broker)
    assert state() is State.SUCCEEDED, "Redis knows more than the row"
    project(projector, engine)
    assert state() is State.SUCCEEDED
    found = history.find(job_id)
    assert found is not None
    assert found.created_at.tzinfo in (UTC, found.created_at.tzinfo)
    assert history.find(uuid.uuid4()) is None


def test_a_job_is_found_while_the_database_is_down(broker: RedisBroker, redis_server: RedisServer) -> None:
    broker.declare_queue("email")
    nowhere = engine_for("postgresql://nobody@127.0.0.1:1/none")
    message = send(broker)
    found = History(nowhere, broker).find(uuid.UUID(message.message_id))
    assert found is not None
    assert found.state is State.PENDING


def test_events_keep_their_order_while_the_clock_of_redis_is_behind_what_it_was(
    broker: RedisBroker, engine: Engine, projector: Projector
) -> None:
    stream = Keys(broker.namespace, "email").events
    # A day ago it was told a time that is still to come, and a million events have had that time since.
    soon = int(time.time() * 1000) + 60_000
    broker.client.xdel(stream, broker.client.xadd(stream, {"x": "1"}, f"{soon}-{2**20}"))
    message = send(broker)
    project(projector, engine)
    run(broker)
    project(projector, engine)
    assert row(engine, message)["state"] == "succeeded"


OF_THE_SEND = {"tenant": "acme", "parent_id": str(uuid.uuid4()), "priority": 2, "idempotency_key": "k"}


@pytest.mark.parametrize(
    "end", ["succeeded", "dead", "cancelled", "cancelled-at-work", "purged", "crashed", "duplicate"]
)
def test_a_job_that_has_ended_is_shown_with_what_it_was_sent_with_before_it_is_stored(
    broker: RedisBroker, engine: Engine, projector: Projector, end: str
) -> None:
    first, message = (Message("email", "t.act", (), {}, {**OF_THE_SEND}) for _ in range(2))
    if end == "duplicate":
        broker.send(first)
        delivery = start(broker)
        delivery.outcome = Succeeded("7")
        broker.settle("email", [remembered(settlement_of(delivery), {})])
    broker.send(message)
    if end == "cancelled":
        JobActs(broker).cancel(message.message_id, by="ada")
    elif end == "purged":
        QueueActs(broker).purge("email", by="ada")
    elif end == "duplicate":
        assert broker.fetch("email", 1)[0] == []
        broker.settle("email", [broker.settler._waiting.popleft()])
    elif end == "crashed":
        keys = Keys(broker.namespace, "email")
        for _ in range(4):
            for delivery in broker.fetch("email", 1)[0]:
                broker.wire.begin(delivery.lease)
                broker.client.zadd(keys.deadlines, {delivery.lease.entry: 1})  # its worker has died
    else:
        delivery = start(broker)
        if end == "cancelled-at-work":
            JobActs(broker).cancel(message.message_id, by="ada")
        settle(broker, delivery, Dead(Failure("E", "no", "")) if end == "dead" else Succeeded("1"))
    found = History(engine, broker).find(uuid.UUID(message.message_id))
    assert found
    assert found.state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)
    project(projector, engine)
    stored = History(engine, broker).find(uuid.UUID(message.message_id))
    for one in (found, stored):
        assert one
        assert (one.tenant, str(one.parent_id), one.priority) == ("acme", OF_THE_SEND["parent_id"], 2)
        assert one.key == "tenant:acme:k"
