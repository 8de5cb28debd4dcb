"""Idempotency keys for all queues: one effect whichever queue a job is on, through a crash between any two steps."""

import random
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.keys import Keys
from service.broker.once import remembered
from service.broker.outcome import Dead, Failure, Succeeded
from service.broker.settlement import settlement_of
from service.errors import Permanent
from service.job import Job
from service.state.states import State
from tests.protocol.test_worker import end_of, find
from tests.servers import eventually

StartWorker = Callable[..., Worker]
QUEUES = ("default", "email", "webhooks")
FAILURE = Failure("ValueError", "no", "")


def declare(broker: RedisBroker, function: Callable[..., Any], queue: str, **options: Any) -> Any:
    options = {"idempotency_key": "{ref}", "idempotency_scope": "global", **options}
    declare_actor: Any = dramatiq.actor
    return declare_actor(function, actor_class=Job, broker=broker, queue_name=queue, actor_name=f"t.{queue}", **options)


@pytest.fixture
def actors(broker: RedisBroker) -> dict[str, Any]:
    """One for each queue, for tests that are the worker themselves."""

    def work(*, ref: str) -> None: ...

    return {queue: declare(broker, work, queue) for queue in QUEUES}


def make_due(broker: RedisBroker, queue: str) -> None:
    """Let come back what waits for its key."""
    delayed = Keys(broker.namespace, queue).delayed
    for entry in broker.client.zrange(delayed, 0, -1):
        broker.client.zadd(delayed, {entry: 0})


def lapse(broker: RedisBroker, queue: str) -> None:
    """Let all leases of a queue end, as if their workers had died."""
    deadlines = Keys(broker.namespace, queue).deadlines
    for entry in broker.client.zrange(deadlines, 0, -1):
        broker.client.zadd(deadlines, {entry: 1})


def fetch(broker: RedisBroker, queue: str) -> list[Delivery]:
    """What starts now. What does not is settled."""
    deliveries = broker.fetch(queue, 10)[0]
    broker.settler.start()
    assert broker.settler.close(10)
    return deliveries


def settle(broker: RedisBroker, delivery: Delivery, outcome: Any, **options: Any) -> None:
    delivery.outcome = outcome
    broker.settle(delivery.lease.queue, [remembered(settlement_of(delivery), options)])


def test_of_many_sends_to_three_queues_one_runs_and_the_others_have_its_result(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    runs: list[str] = []

    def work(*, ref: str) -> str:
        runs.append(ref)
        time.sleep(0.3)
        return f"run {len(runs)}"

    actors = [declare(broker, work, queue) for queue in QUEUES]
    messages = [actor.send(ref="a") for actor in actors for _ in range(3)]
    start_worker(threads=8)
    assert {end_of(broker, message).result for message in messages} == {"run 1"}
    assert runs == ["a"]
    skipped = [(broker.find_record(message.message_id) or {}).get("skipped") for message in messages]
    assert (skipped.count("true"), skipped.count(None)) == (8, 1)


def test_who_fails_for_good_frees_the_key_for_other_queues(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    def fails(*, ref: str) -> None:
        runs.append("fails")
        time.sleep(0.2)
        raise Permanent("no")

    def works(*, ref: str) -> None:
        runs.append("works")

    failing, working = declare(broker, fails, "default"), declare(broker, works, "email")
    first = failing.send(ref="a")
    start_worker()
    eventually(lambda: runs)
    second = working.send(ref="a")
    assert end_of(broker, first).state is State.DEAD
    assert end_of(broker, second).state is State.SUCCEEDED
    assert runs == ["fails", "works"]


def test_other_keys_and_keys_of_one_queue_are_not_met(broker: RedisBroker, actors: dict[str, Any]) -> None:
    def work(*, ref: str) -> None: ...

    narrow = declare(broker, work, "reports", idempotency_scope="queue")
    for act, ref in ((actors["default"], "a"), (actors["email"], "b"), (narrow, "a")):
        act.send(ref=ref)
        assert len(fetch(broker, act.queue_name)) == 1


def test_who_waits_shows_as_scheduled_with_no_attempt_and_no_suspicion(
    broker: RedisBroker, actors: dict[str, Any]
) -> None:
    actors["default"].send(ref="a")
    [holder] = fetch(broker, "default")
    waiting = actors["email"].send(ref="a")
    for _ in range(3):
        assert fetch(broker, "email") == []
        assert (find(broker, waiting).state, find(broker, waiting).attempt) == (State.SCHEDULED, 0)
        make_due(broker, "email")
    settle(broker, holder, Succeeded('"first"'))
    assert fetch(broker, "email") == []
    assert end_of(broker, waiting).result == "first"


@pytest.mark.parametrize("point", ["fetched", "running"])
def test_a_crash_before_the_end_frees_the_key_with_the_lease(
    broker: RedisBroker, actors: dict[str, Any], point: str
) -> None:
    """The worker of `default` dies at the point; nobody serves its queue any more."""
    crashed = actors["default"].send(ref="a")
    if point == "fetched":
        broker.wire.fetch("default", 1, lease_ms=30_000, wakeable_ms=0)
    else:
        assert len(fetch(broker, "default")) == 1
    waiting = actors["email"].send(ref="a")
    if point != "fetched":
        assert fetch(broker, "email") == [], "the lease has not ended"
    lapse(broker, "default")
    make_due(broker, "email")
    found = fetch(broker, "email")
    if not found:  # the look has let go of what had lapsed
        make_due(broker, "email")
        found = fetch(broker, "email")
    [delivery] = found
    assert fetch(broker, "default") == [], "it comes back, and meets the new holder"
    settle(broker, delivery, Succeeded('"second"'))
    make_due(broker, "default")
    assert fetch(broker, "default") == []
    assert {end_of(broker, each).result for each in (crashed, waiting)} == {"second"}


def test_a_job_that_comes_back_takes_its_key_again(broker: RedisBroker, actors: dict[str, Any]) -> None:
    actors["default"].send(ref="a")
    assert len(fetch(broker, "default")) == 1
    lapse(broker, "default")
    [again] = fetch(broker, "default")
    assert again.lease.lapses == 1
    actors["email"].send(ref="a")
    assert fetch(broker, "email") == []


def test_a_remembered_failure_counts_in_other_queues_and_a_time_ends_everywhere(
    broker: RedisBroker, actors: dict[str, Any]
) -> None:
    actors["default"].send(ref="a")
    [holder] = fetch(broker, "default")
    settle(broker, holder, Dead(FAILURE), remember_failure=True, idempotency_ttl=0.3)
    other = actors["email"].send(ref="a")
    assert fetch(broker, "email") == []
    assert end_of(broker, other).state is State.DEAD
    time.sleep(0.35)
    actors["email"].send(ref="a")
    assert len(fetch(broker, "email")) == 1


def test_while_the_key_can_not_be_asked_for_the_job_waits_and_loses_no_attempt(
    broker: RedisBroker, actors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: Any, **__: Any) -> None:
        raise redis.TimeoutError("no answer")

    message: Message = actors["default"].send(ref="a")
    with monkeypatch.context() as patch:
        patch.setattr(broker.wire, "point", no_answer)
        assert fetch(broker, "default") == []
    assert find(broker, message).state is State.SCHEDULED
    make_due(broker, "default")
    [delivery] = fetch(broker, "default")
    assert (delivery.attempt, delivery.lease.lapses) == (1, 0)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_crashes_no_two_deliveries_hold_a_key_and_one_succeeds(
    broker: RedisBroker, actors: dict[str, Any], seed: int
) -> None:
    """Workers of three queues that are killed between any two steps, in an order of chance."""
    chance = random.Random(seed)
    held: dict[str, list[Delivery]] = {queue: [] for queue in QUEUES}
    messages = [actors[queue].send(ref="a") for queue in QUEUES for _ in range(2)]
    effects = 0
    for _ in range(120):
        queue = chance.choice(QUEUES)
        match chance.randrange(6):
            case 0 | 1:
                make_due(broker, queue)
                held[queue] += fetch(broker, queue)
            case 2:  # killed after the fetch, before its key is asked for
                broker.wire.fetch(queue, 1, lease_ms=30_000, wakeable_ms=0)
            case 3:
                lapse(broker, queue)
                held[queue].clear()
            case 4 if held[queue]:
                settle(broker, held[queue].pop(), Dead(FAILURE))
            case 5 if held[queue] and chance.random() < 0.3:
                settle(broker, held[queue].pop(), Succeeded('"done"'))
                effects += 1
            case _:
                pass
        assert sum(map(len, held.values())) <= 1
    assert effects <= 1
    for queue in QUEUES:
        lapse(broker, queue)
        held[queue].clear()
    for _ in range(6):
        for queue in QUEUES:
            make_due(broker, queue)
            for delivery in fetch(broker, queue):
                settle(broker, delivery, Succeeded('"done"'))
                effects += 1
    ends = [end_of(broker, message).state for message in messages]
    assert set(ends) <= {State.SUCCEEDED, State.DEAD}
    assert effects == (1 if State.SUCCEEDED in ends else 0)
