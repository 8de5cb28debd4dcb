"""Rows whose truth in Redis differs are repaired; what Redis does not know is counted and left alone."""

import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.message import Message
from sqlalchemy import Connection, Engine, select

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Snoozed, Succeeded
from service.broker.settlement import released, settlement_of
from service.settings import Settings
from service.state.differences import Findings
from service.state.projector import Projector
from service.state.reconciler import Reconciler
from service.state.tables import events, jobs
from tests.servers import eventually

QUEUE = "email"
FAILURE = Failure("ValueError", "no", "Traceback ...")


class World:
    """A queue, its projector, and the reconciler beside it."""

    def __init__(self, broker: RedisBroker, engine: Engine, connection: Connection, settings: Settings) -> None:
        self.broker = broker
        self.connection = connection
        self.keys = Keys(broker.namespace, QUEUE)
        self.projector = Projector(broker, engine)
        self.findings = Findings()
        self.reconciler = Reconciler(broker, settings, self.findings, older_than_seconds=0)

    def send(self, delay_ms: int | None = None, **options: Any) -> str:
        message: Message = Message(QUEUE, "t.act", (), {"n": 1}, options)
        self.broker.send(message, delay_ms=delay_ms)
        return message.message_id

    def fetch(self) -> Delivery:
        [delivery] = self.broker.fetch(QUEUE, 1)[0]
        return delivery

    def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        delivery.outcome = outcome
        self.broker.settle(QUEUE, [settlement_of(delivery)])

    def project(self) -> None:
        while self.projector.project_batch(self.connection):
            pass

    def lose_events(self) -> None:
        """As a projector that dropped them, or somebody who trimmed the stream."""
        self.broker.client.xtrim(self.keys.events, maxlen=0)

    def sweep(self) -> None:
        while self.reconciler.step(self.connection):
            pass

    def row(self, job_id: str) -> Any:
        found = self.connection.execute(select(jobs).where(jobs.c.job_id == UUID(job_id))).one_or_none()
        self.connection.commit()
        return found

    def counted(self, difference: str) -> float:
        labels = {"queue": QUEUE, "difference": difference}
        return self.findings.registry.get_sample_value("callboard_reconciler_differences_total", labels) or 0.0

    def missing(self) -> float | None:
        return self.findings.registry.get_sample_value("callboard_reconciler_missing_jobs", {"queue": QUEUE})

    def all_counted(self) -> dict[str, float]:
        return {kind: self.counted(kind) for kind in ("state", "due", "unknown") if self.counted(kind)}


@pytest.fixture
def world(broker: RedisBroker, engine: Engine, settings: Settings) -> Iterator[World]:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE)
    def act(n: int) -> None: ...

    with engine.connect() as connection:
        yield World(broker, engine, connection, settings)


def test_a_start_that_nobody_told_is_repaired_and_what_happens_later_wins(world: World) -> None:
    job_id = world.send()
    world.project()
    delivery = world.fetch()
    world.lose_events()
    world.sweep()
    row = world.row(job_id)
    assert (row.state, row.attempt, row.worker) == ("running", 1, world.broker.worker_id)
    assert row.started_at is not None
    assert world.all_counted() == {"state": 1}
    world.settle(delivery, Succeeded('{"sent": true}'))
    world.project()
    assert (world.row(job_id).state, world.row(job_id).result) == ("succeeded", {"sent": True})
    told = select(events.c.kind).where(events.c.job_id == UUID(job_id)).order_by(events.c.sequence, events.c.copy)
    assert world.connection.execute(told).scalars().all() == ["sent", "repaired", "settled"]


@pytest.mark.parametrize(
    ("outcome", "state", "kept"),
    [
        pytest.param(Succeeded('{"a": 1}'), "succeeded", {"result": {"a": 1}, "error": None}, id="succeeded"),
        pytest.param(Dead(FAILURE), "dead", {"reason": "failed"}, id="dead"),
    ],
)
def test_an_end_that_nobody_told_is_repaired_and_leaves_redis(
    world: World, outcome: Outcome, state: str, kept: dict[str, Any]
) -> None:
    job_id = world.send()
    delivery = world.fetch()
    world.project()
    world.settle(delivery, outcome)
    world.lose_events()
    world.sweep()
    row = world.row(job_id)
    assert row.state == state
    assert {name: getattr(row, name) for name in kept} == kept
    assert row.completed_at is not None
    assert not world.broker.client.exists(world.keys.finals)
    world.sweep()
    assert world.all_counted() == {"state": 1}


def test_a_dead_letter_whose_end_is_forgotten_is_an_end_all_the_same(world: World) -> None:
    job_id = world.send()
    delivery = world.fetch()
    world.project()
    world.settle(delivery, Dead(FAILURE))
    world.lose_events()
    world.broker.client.delete(world.keys.finals)
    world.sweep()
    row = world.row(job_id)
    assert (row.state, row.reason, row.error["message"]) == ("dead", "failed", "no")
    assert world.missing() == 0


def test_a_job_that_nobody_told_of_gets_its_row_with_its_message(world: World) -> None:
    job_id = world.send(idempotency_key="k1", priority=2)
    retrying = world.send()
    first, second = world.fetch(), world.fetch()
    world.settle(second, RetryLater(second.copy_for_retry("trace"), 60_000, FAILURE))
    world.lose_events()
    world.sweep()
    row = world.row(job_id)
    assert first.message_id == job_id
    assert (row.state, row.type, row.key, row.priority, row.payload) == ("running", "t.act", "k1", 2, {"n": 1})
    assert json.loads(row.message)["message_id"] == job_id
    again = world.row(retrying)
    assert (again.state, again.attempt, again.run_at is not None) == ("retrying", 1, True)
    assert world.all_counted() == {"unknown": 2}
    world.settle(first, Succeeded("1"))
    world.project()
    assert world.row(job_id).state == "succeeded"


def test_a_job_that_redis_does_not_know_is_counted_and_left_as_it_is(world: World) -> None:
    job_id = world.send()
    world.send()
    world.project()
    world.broker.client.hdel(world.keys.messages, job_id)
    before = world.row(job_id)
    world.sweep()
    world.sweep()
    assert world.missing() == 1
    assert world.row(job_id) == before
    assert world.all_counted() == {}


def test_a_scheduled_job_that_has_come_due_is_pending_and_no_fault(world: World) -> None:
    job_id = world.send(delay_ms=50)
    world.project()
    assert world.row(job_id).state == "scheduled"
    world.broker.wire.fetch("ai", 1, lease_ms=30_000, wakeable_ms=0)
    eventually(lambda: not world.broker.wire.run("fetch", QUEUE, [0, 30_000, "w", 0, 1_000_000])[3] and ready(world))
    world.sweep()
    assert world.row(job_id).state == "pending"
    assert world.all_counted() == {"due": 1}


def ready(world: World) -> bool:
    return bool(world.broker.client.exists(world.keys.ready))


def test_another_time_and_priority_that_nobody_told_are_repaired(world: World) -> None:
    job_id = world.send(delay_ms=60_000)
    world.project()
    JobActs(world.broker).reschedule(job_id, by="ada", priority=1, delay_ms=3_600_000)
    world.lose_events()
    before = world.row(job_id)
    world.sweep()
    row = world.row(job_id)
    assert row.state == "scheduled"
    assert row.priority == 1
    assert row.run_at > before.run_at
    assert world.all_counted() == {"state": 1}


def test_what_is_told_before_it_is_judged_is_no_difference(world: World) -> None:
    job_id = world.send()
    world.project()
    delivery = world.fetch()
    # It has looked, and what has happened is still on its way.
    for _ in range(3):
        world.reconciler.step(world.connection)
    world.project()
    world.sweep()
    assert world.row(job_id).state == "running"
    world.settle(delivery, Succeeded("1"))
    world.project()
    world.sweep()
    assert world.row(job_id).state == "succeeded"
    assert world.all_counted() == {}


def test_nothing_differs_where_nothing_was_lost(world: World) -> None:
    for n in range(4):
        world.send(idempotency_key="same")
        world.send(priority=n)
        world.send(delay_ms=60_000 + n)
    deliveries = world.broker.fetch(QUEUE, 4)[0]
    world.settle(deliveries[0], RetryLater(deliveries[0].copy_for_retry("trace"), 60_000, FAILURE))
    world.settle(deliveries[1], Snoozed(deliveries[1].copy_unchanged(), 60_000))
    world.settle(deliveries[2], Dead(FAILURE))
    world.project()
    world.broker.settle(QUEUE, [released(deliveries[3])])
    world.project()
    world.sweep()
    assert world.all_counted() == {}
    assert world.missing() == 0


def test_the_projector_reconciles_beside_its_work(
    world: World, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.state.reconciler.PAUSE_SECONDS", 0.05)
    job_id = world.send()
    world.project()
    world.fetch()
    world.lose_events()
    stop = threading.Event()
    projector = Projector(world.broker, engine, reconciler=world.reconciler)
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: world.row(job_id).state == "running")
        eventually(lambda: b'callboard_reconciler_missing_jobs{queue="email"} 0.0' in world.findings.text())
    finally:
        stop.set()
        thread.join()
