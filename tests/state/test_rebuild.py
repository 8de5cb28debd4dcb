"""A Redis that has lost jobs is filled from the database: each comes back once, as it was."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker
from sqlalchemy import Connection, Engine, select, text

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.delivery import Delivery
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Succeeded
from service.broker.restoring import Lost, Restored, Restoring
from service.broker.settlement import settlement_of
from service.errors import JobExists
from service.state.projector import Projector
from service.state.rebuild import Rebuild, Report
from service.state.states import State
from service.state.tables import events, jobs
from tests.servers import eventually

QUEUE = "email"
FAILURE = Failure("ValueError", "no", "Traceback ...")
HOUR_MS = 3_600_000


class World:
    """A queue with its history, and a Redis that can lose what it has."""

    def __init__(self, broker: RedisBroker, engine: Engine, connection: Connection) -> None:
        self.broker = broker
        self.engine = engine
        self.connection = connection
        self.keys = Keys(broker.namespace, QUEUE)
        self.projector = Projector(broker, engine)

    def send(self, delay_ms: int | None = None, queue: str = QUEUE, **options: Any) -> str:
        message: Message = Message(queue, "t.act", (), {"n": 1}, options)
        self.broker.send(message, delay_ms=delay_ms)
        return message.message_id

    def fetch(self, count: int = 1) -> list[Delivery]:
        return self.broker.fetch(QUEUE, count)[0]

    def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        delivery.outcome = outcome
        self.broker.settle(QUEUE, [settlement_of(delivery)])

    def project(self) -> None:
        while self.projector.project_batch(self.connection):
            pass

    def lose_all(self) -> None:
        """As FLUSHALL does, for this test's own keys: others use the server too."""
        names = list(self.broker.client.scan_iter(f"*{self.broker.namespace}*", count=1000))
        self.broker.client.delete(*names)

    def rebuild(self, **options: Any) -> Report:
        return Rebuild(self.broker, self.engine, letters_days=30, **options).run()

    def row(self, job_id: str) -> Any:
        found = self.connection.execute(select(jobs).where(jobs.c.job_id == UUID(job_id))).one_or_none()
        self.connection.commit()
        return found

    def record(self, job_id: str) -> dict[str, str]:
        found = self.broker.find_record(job_id)
        assert found is not None
        return found


@pytest.fixture
def world(broker: RedisBroker, engine: Engine) -> Iterator[World]:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE, max_deliveries=5)
    def act(n: int) -> None: ...

    with engine.connect() as connection:
        yield World(broker, engine, connection)


def test_what_waits_comes_back_to_its_place_and_time(world: World) -> None:
    last, first, second = world.send(priority=9), world.send(priority=0), world.send(priority=0)
    later = world.send(delay_ms=HOUR_MS, tenant="acme")
    world.project()
    due = world.record(later)["run_at"]
    world.lose_all()
    report = world.rebuild()
    assert report.restored == {(QUEUE, State.PENDING): 3, (QUEUE, State.SCHEDULED): 1}
    assert report.lost == []
    record = world.record(later)
    assert (record["state"], record["run_at"], record["tenant"]) == ("scheduled", due, "acme")
    deliveries = world.fetch(10)
    assert [delivery.message_id for delivery in deliveries] == [first, second, last]
    assert {delivery.lease.max_deliveries for delivery in deliveries} == {5}
    assert {delivery.lease.created_ms for delivery in deliveries} == {
        round(world.row(job_id).created_at.timestamp() * 1000) for job_id in (first, second, last)
    }
    for delivery in deliveries:
        world.settle(delivery, Succeeded("1"))
    world.project()
    assert [world.row(job_id).state for job_id in (first, second, last, later)] == [*["succeeded"] * 3, "scheduled"]


def test_a_retry_comes_back_with_its_attempts_behind_it(world: World) -> None:
    job_id = world.send()
    [delivery] = world.fetch()
    world.settle(delivery, RetryLater(delivery.copy_for_retry("trace"), HOUR_MS, FAILURE))
    world.project()
    before = world.record(job_id)
    world.lose_all()
    assert world.rebuild().restored == {(QUEUE, State.RETRYING): 1}
    after = world.record(job_id)
    assert {name: after[name] for name in ("state", "attempt", "run_at")} == {
        name: before[name] for name in ("state", "attempt", "run_at")
    }
    world.broker.client.zadd(world.keys.delayed, {job_id: 1})
    [again] = world.fetch()
    assert again.attempt == 2
    assert again.options["retries"] == 1
    world.project()
    assert (world.row(job_id).state, world.row(job_id).attempt) == ("running", 2)


def test_what_ran_runs_again_and_who_ran_it_can_settle_nothing(world: World) -> None:
    job_id = world.send()
    [old] = world.fetch()
    world.project()
    world.lose_all()
    assert world.rebuild().restored == {(QUEUE, State.RUNNING): 1}
    world.project()
    assert world.row(job_id).state == "pending"
    [new] = world.fetch()
    assert (new.message_id, new.attempt) == (job_id, 1)
    assert int(new.lease.token) > int(old.lease.token)
    world.settle(old, Succeeded('"of the old one"'))
    assert world.record(job_id)["state"] == "running"
    world.settle(new, Succeeded('"of the new one"'))
    world.project()
    assert (world.row(job_id).state, world.row(job_id).result) == ("succeeded", "of the new one")


def test_a_key_stays_taken_by_the_job_that_has_succeeded(world: World, start_worker: Callable[..., Worker]) -> None:
    first = world.send(idempotency_key="k")
    [delivery] = world.fetch()
    world.settle(delivery, Succeeded('{"a": 1}'))
    duplicate = world.send(idempotency_key="k")
    world.project()
    world.lose_all()
    report = world.rebuild()
    assert report.keys == {QUEUE: 1}
    assert report.restored == {(QUEUE, State.PENDING): 1}
    assert world.rebuild().keys == {QUEUE: 0}
    later = world.send(idempotency_key="k")
    start_worker()
    eventually(lambda: not world.broker.client.exists(world.keys.messages))
    world.project()
    for job_id in (duplicate, later):
        row = world.row(job_id)
        assert (row.state, row.skipped, row.result) == ("succeeded", True, {"a": 1})
    assert world.row(first).attempt == 1


def test_a_key_for_all_queues_is_taken_again_in_all(world: World) -> None:
    world.broker.get_actor("t.act").options["idempotency_scope"] = "global"
    world.send(idempotency_key="k")
    [delivery] = world.fetch()
    world.settle(delivery, Succeeded('{"a": 1}'))
    world.project()
    world.lose_all()
    assert world.rebuild().keys == {QUEUE: 1}
    other = world.send(queue="default", idempotency_key="k")
    assert world.broker.fetch("default", 1)[0] == [], "it is no other queue's"
    world.broker.settler.start()
    assert world.broker.settler.close(10)
    assert (world.record(other)["state"], world.record(other)["result"]) == ("succeeded", '{"a": 1}')


def test_a_unique_key_is_taken_again_unless_somebody_else_has_it_now(world: World) -> None:
    job_id = world.send(unique_key="u")
    world.project()
    world.lose_all()
    world.rebuild()
    with pytest.raises(JobExists, match=job_id):
        world.send(unique_key="u")
    world.project()
    world.lose_all()
    other = world.send(unique_key="u")
    assert world.rebuild().total == 1
    with pytest.raises(JobExists, match=other):
        world.send(unique_key="u")


def test_a_dead_letter_comes_back_and_can_be_replayed_and_is_not_told_of_again(world: World) -> None:
    job_id = world.send(priority=3)
    [delivery] = world.fetch()
    world.settle(delivery, Dead(FAILURE))
    world.project()
    letters = DeadLetters(world.broker)
    before = letters.get(job_id)
    assert before is not None
    world.lose_all()
    assert world.rebuild().restored == {(QUEUE, State.DEAD): 1}
    after = letters.get(job_id)
    assert after is not None
    for name in ("died_ms", "function", "reason", "error", "message", "priority", "original_queue"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.attempts == []
    assert not world.broker.client.exists(world.keys.untold)
    assert letters.replay(after, by="ada") is Replay.DONE
    [again] = world.fetch()
    world.settle(again, Succeeded("1"))
    world.project()
    assert world.row(job_id).state == "succeeded"


def test_dead_letters_stay_away_from_a_queue_that_has_its_own_unless_they_are_asked_for(world: World) -> None:
    lost, kept = world.send(), world.send()
    for delivery in world.fetch(2):
        world.settle(delivery, Dead(FAILURE))
    world.project()
    letters = DeadLetters(world.broker)
    for key in (world.keys.dead_messages, world.keys.dead_letters):
        world.broker.client.hdel(key, lost)
    world.broker.client.zrem(world.keys.dead, lost)
    report = world.rebuild()
    assert report.letters_left == {QUEUE: 1}
    assert report.total == 0
    assert letters.get(lost) is None
    assert world.rebuild(all_letters=True).restored == {(QUEUE, State.DEAD): 1}
    assert letters.get(lost) is not None
    assert letters.get(kept) is not None


@pytest.mark.parametrize("folded", [False, True])
def test_a_dead_letter_that_was_deleted_stays_so_and_its_history_says_by_whom(world: World, folded: bool) -> None:
    gone, lost = world.send(), world.send()
    for delivery in world.fetch(2):
        world.settle(delivery, Dead(FAILURE))
    letters = DeadLetters(world.broker)
    deleted = letters.get(gone)
    assert deleted is not None
    assert letters.delete(deleted, by="ada", why="the account is closed")
    if folded:
        world.broker.wire.fold(QUEUE, 0, 2**40, refusal_ms=1)
    world.project()
    assert world.row(gone).state == "dead"
    with world.engine.connect() as connection:
        told = connection.execute(select(events).where(events.c.job_id == gone, events.c.kind == "deleted")).one()
    assert (told.state, told.attempt, told.data) == (None, 1, {"by": "ada", "why": "the account is closed"})
    world.lose_all()
    report = world.rebuild(all_letters=True)
    assert (report.restored, report.letters_left) == ({(QUEUE, State.DEAD): 1}, {})
    assert letters.get(gone) is None
    assert letters.get(lost) is not None


def test_a_rebuild_that_was_killed_among_dead_letters_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        world.send()
    for delivery in world.fetch(4):
        world.settle(delivery, Dead(FAILURE))
    world.project()
    world.lose_all()
    monkeypatch.setattr("service.state.rebuild.MOST_ROWS", 2)
    restore = Restoring.restore
    calls: list[int] = []

    def once(self: Restoring, queue: str, lost: list[Lost]) -> list[Restored]:
        calls.append(len(lost))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return restore(self, queue, lost)

    monkeypatch.setattr(Restoring, "restore", once)
    with pytest.raises(KeyboardInterrupt):
        world.rebuild()
    assert calls == [2, 2]
    report = world.rebuild()
    assert report.restored == {(QUEUE, State.DEAD): 2}
    assert len(DeadLetters(world.broker).page().letters) == 4


def test_of_a_partial_loss_only_what_is_missing_comes_back(world: World) -> None:
    lost, there, held, elsewhere = (world.send(queue=queue) for queue in (QUEUE, QUEUE, QUEUE, "ai"))
    world.project()
    client = world.broker.client
    client.hdel(world.keys.messages, lost)
    for key in client.scan_iter(f"*{world.broker.namespace}:ai*"):
        client.delete(key)
    before = client.hget(world.keys.messages, there)
    report = world.rebuild()
    assert report.restored == {(QUEUE, State.PENDING): 1, ("ai", State.PENDING): 1}
    assert client.hget(world.keys.messages, there) == before
    assert sorted(delivery.message_id for delivery in world.fetch(10)) == sorted([lost, there, held])
    assert [delivery.message_id for delivery in world.broker.fetch("ai", 10)[0]] == [elsewhere]


def test_a_message_that_was_lost_under_its_worker_comes_back_under_it(world: World) -> None:
    job_id = world.send()
    [delivery] = world.fetch()
    world.project()
    world.broker.client.hdel(world.keys.messages, job_id)
    assert world.rebuild().restored == {(QUEUE, State.RUNNING): 1}
    assert world.fetch() == []
    world.settle(delivery, Succeeded("1"))
    world.project()
    assert world.row(job_id).state == "succeeded"


def test_nothing_comes_back_that_is_on_its_way_to_the_database(world: World) -> None:
    ended, dies, replayed = (world.send() for _ in range(3))
    deliveries = {delivery.message_id: delivery for delivery in world.fetch(3)}
    world.settle(deliveries[replayed], Dead(FAILURE))
    world.project()
    world.settle(deliveries[ended], Succeeded("1"))
    world.settle(deliveries[dies], Dead(FAILURE))
    letters = DeadLetters(world.broker)
    letter = letters.get(replayed)
    assert letter is not None
    letters.replay(letter, by="ada")
    assert world.rebuild(all_letters=True).total == 0
    world.project()
    assert [world.row(job_id).state for job_id in (ended, dies, replayed)] == ["succeeded", "dead", "pending"]


def test_who_has_looked_before_others_brought_a_job_back_does_not_do_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.send()
    world.project()
    world.lose_all()
    late = Rebuild(world.broker, world.engine, letters_days=30)
    restore = late._restoring.restore

    def after_all_is_over(queue: str, lost: list[Lost]) -> list[Restored]:
        assert world.rebuild().total == 1
        [delivery] = world.fetch()
        world.settle(delivery, Succeeded("1"))
        world.project()
        assert world.row(job_id).state == "succeeded"
        return restore(queue, lost)

    monkeypatch.setattr(late._restoring, "restore", after_all_is_over)
    assert late.run().total == 0
    assert world.fetch() == []


def test_two_at_once_bring_each_job_back_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.state.rebuild.MOST_ROWS", 10)
    sent = {world.send() for _ in range(200)}
    world.project()
    world.lose_all()
    reports: list[Report] = []
    threads = [threading.Thread(target=lambda: reports.append(world.rebuild())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.total for report in reports) == 200
    fetched = [delivery.message_id for _ in range(3) for delivery in world.fetch(100)]
    assert len(fetched) == 200
    assert set(fetched) == sent


def test_a_second_loss_is_made_good_as_the_first_was(world: World) -> None:
    job_id = world.send()
    for _ in range(2):
        world.project()
        world.lose_all()
        assert world.rebuild().total == 1
    world.project()
    world.broker.client.hdel(world.keys.messages, job_id)
    assert world.rebuild().total == 1


def test_what_has_no_message_is_named(world: World) -> None:
    job_id = world.send()
    world.project()
    world.connection.execute(text("UPDATE callboard_jobs SET message = NULL"))
    world.connection.commit()
    world.lose_all()
    report = world.rebuild()
    assert report.total == 0
    [one] = report.lost
    assert (one.job_id, one.queue, one.state) == (job_id, QUEUE, State.PENDING)
    assert "no message" in one.why


def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    world.send(idempotency_key="k")
    world.settle(world.fetch()[0], Succeeded("1"))
    world.send()
    world.send(delay_ms=HOUR_MS)
    world.project()
    world.lose_all()
    report = world.rebuild(dry_run=True)
    assert report.restored == {(QUEUE, State.PENDING): 1, (QUEUE, State.SCHEDULED): 1}
    assert report.keys == {QUEUE: 1}
    assert list(world.broker.client.scan_iter(f"*{world.broker.namespace}*", count=1000)) == []
    assert world.rebuild().restored == report.restored


def test_the_clock_of_the_new_server_may_be_behind(world: World) -> None:
    job_id = world.send()
    world.project()
    ahead = text("UPDATE callboard_jobs SET sequence = :s, last_sequence = :s, state = 'running'")
    row = world.row(job_id)
    world.connection.execute(ahead, {"s": row.last_sequence + (HOUR_MS << 20)})
    world.connection.commit()
    world.lose_all()
    assert world.rebuild().total == 1
    world.project()
    assert world.row(job_id).state == "pending"
    [delivery] = world.fetch()
    world.settle(delivery, Succeeded("1"))
    world.project()
    assert world.row(job_id).state == "succeeded"
