"""PostgreSQL is away for long, under load: work goes on, Redis does not fill, and then the history is complete."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.message import Message
from sqlalchemy import func, select

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, RetryLater, Succeeded
from service.broker.settlement import settlement_of
from service.errors import QueueFull
from service.state.database import engine_for
from service.state.migrate import upgrade
from service.state.projector import Projector
from service.state.tables import events, jobs
from tests.servers import PostgresServer, eventually

QUEUE = "email"
CAP = 1024 * 1024


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("own-postgres"))
    server.start()
    upgrade(server.url)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _low_cap(broker: RedisBroker) -> None:
    broker.backlog._most_bytes = CAP

    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE)
    def act(n: int) -> None: ...


def send(broker: RedisBroker, count: int) -> tuple[list[str], list[Exception]]:
    messages: list[Message] = [Message(QUEUE, "t.act", (), {"n": n, "text": "x" * 100}, {}) for n in range(count)]
    report = broker.send_many(messages)
    return [message.message_id for message in report.stored], [error for _, error in report.failed]


def work(broker: RedisBroker, ends: dict[str, str]) -> None:
    """Run what is ready: of ten jobs one fails once, one dies, and the others succeed."""
    while deliveries := broker.fetch(QUEUE, 100)[0]:
        for delivery in deliveries:
            n = delivery.kwargs["n"] % 10
            if n == 1:
                delivery.outcome = Dead(Failure("ValueError", "no", "trace"))
            elif n == 2 and delivery.attempt == 1:
                delivery.outcome = RetryLater(delivery.copy_for_retry(""), 0, Failure("ValueError", "no", ""))
            else:
                delivery.outcome = Succeeded('"done"')
            ends[delivery.message_id] = "dead" if n == 1 else "succeeded"
        broker.settle(QUEUE, [settlement_of(delivery) for delivery in deliveries])


def unstored_bytes(broker: RedisBroker) -> int:
    keys = Keys(broker.namespace, QUEUE)
    return sum(broker.client.memory_usage(key) or 0 for key in (keys.events, keys.folded, keys.finals))


def test_an_outage_under_load_costs_no_job(broker: RedisBroker, own_postgres: PostgresServer) -> None:
    engine = engine_for(own_postgres.url)
    projector = Projector(broker, engine)
    stop = threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    ends: dict[str, str] = {}
    sent: list[str] = []
    errors: list[Exception] = []
    try:
        eventually(lambda: projector.is_ready)
        sent += send(broker, 50)[0]
        work(broker, ends)
        own_postgres.stop()
        deadline = time.monotonic() + 60
        while not errors:
            assert time.monotonic() < deadline, "nothing was refused"
            stored, errors = send(broker, 100)
            sent += stored
            work(broker, ends)
            broker.backlog.relieve(QUEUE)  # as a worker's own thread does
            assert unstored_bytes(broker) < 2 * CAP
        assert all(isinstance(error, QueueFull) for error in errors)
        assert "PostgreSQL" in str(errors[0])
        work(broker, ends)  # what was accepted goes on
        assert set(sent) == set(ends)
        assert len(sent) > 500
        own_postgres.start()

        def is_complete() -> bool:
            with engine.connect() as connection:
                return connection.execute(select(func.count()).select_from(jobs)).scalar_one() == len(sent)

        eventually(lambda: projector.is_ready and is_complete(), 60)
        keys, client = Keys(broker.namespace, QUEUE), broker.client
        eventually(lambda: not client.xlen(keys.events) and not client.exists(keys.folded, keys.finals), 60)
        assert send(broker, 1)[1] == [], "sends are taken again"
    finally:
        stop.set()
        thread.join(20)
    with engine.connect() as connection:
        found = connection.execute(select(jobs.c.job_id, jobs.c.state, jobs.c.attempt, jobs.c.message)).all()
    stored_states = {str(row.job_id): row.state for row in found}
    assert {job_id: stored_states[job_id] for job_id in ends} == ends
    assert all(row.message for row in found), "each can be sent again"
    attempts = Counter(row.attempt for row in found if row.state == "succeeded")
    assert attempts[2] == sum(_n(row.message) % 10 == 2 for row in found)
    engine.dispose()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_hour_of_events_waits_folded_and_is_stored_in_the_end(
    broker: RedisBroker, own_postgres: PostgresServer
) -> None:
    broker.backlog._most_bytes = 160 * CAP
    own_postgres.stop()
    ends: dict[str, str] = {}
    errors: list[Exception] = []
    began, slowest = time.monotonic(), 0.0
    while not errors:
        _, errors = send(broker, 1_000)
        work(broker, ends)
        step = time.monotonic()
        broker.backlog.relieve(QUEUE)  # as a worker's own thread does
        slowest = max(slowest, time.monotonic() - step)
        assert unstored_bytes(broker) < 2 * 160 * CAP
    seconds = time.monotonic() - began
    keys, client = Keys(broker.namespace, QUEUE), broker.client
    print(f"{len(ends)} jobs in {seconds:.0f} s, {client.hlen(keys.folded)} folded; the longest pause {slowest:.2f} s")
    assert len(ends) > 150_000, "three events each, and some five: more than half a million"
    own_postgres.start()
    began = time.monotonic()
    engine = engine_for(own_postgres.url)
    projector = Projector(broker, engine)
    stop = threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: not client.exists(keys.folded, keys.finals) and not client.xlen(keys.events), 1800)
    finally:
        stop.set()
        thread.join(60)
    print(f"stored in {time.monotonic() - began:.0f} s")
    with engine.connect() as connection:
        found = connection.execute(select(jobs.c.job_id, jobs.c.state)).all()
    assert {str(row.job_id): row.state for row in found} == ends
    engine.dispose()


def _n(message: bytes) -> int:
    return json.loads(message)["kwargs"]["n"]


def test_folded_events_keep_what_the_row_needs(broker: RedisBroker, own_postgres: PostgresServer) -> None:
    broker.backlog._most_bytes = 1  # all is folded
    engine = engine_for(own_postgres.url)
    ends: dict[str, str] = {}
    send(broker, 10)
    work(broker, ends)
    broker.backlog.relieve(QUEUE)
    keys = Keys(broker.namespace, QUEUE)
    assert broker.client.xlen(keys.events) == 0
    assert broker.client.hlen(keys.folded) == 10
    with pytest.raises(QueueFull):
        broker.send(Message(QUEUE, "t.act", (), {"n": 1}, {}))
    broker.backlog._most_bytes = CAP
    projector = Projector(broker, engine)
    with engine.connect() as connection:
        while projector.project_batch(connection):
            pass
        found = connection.execute(select(jobs).order_by(jobs.c.created_at)).all()
        kinds = connection.execute(select(events.c.kind, func.count()).group_by(events.c.kind)).all()
    assert {str(row.job_id): row.state for row in found} == ends
    assert Counter(row.attempt for row in found) == {1: 9, 2: 1}
    assert all(row.worker and row.started_at and row.payload for row in found)
    assert {row[0]: row[1] for row in kinds} == {"sent": 10, "started": 11, "settled": 10}
    assert not broker.client.exists(keys.folded, keys.finals)
    assert broker.client.xlen(keys.events) == 0
    broker.send(Message(QUEUE, "t.act", (), {"n": 1}, {}))
    engine.dispose()
