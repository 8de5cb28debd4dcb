"""Priority 0 to 9 decides at the fetch, whoever fetches; within one priority it is the order of the original sends."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.outcome import Failure, RetryLater
from service.broker.settlement import settlement_of
from service.middleware import chain
from service.settings import Settings
from tests.commands import commands_of, total_calls
from tests.servers import RedisServer, eventually

QUEUE = "default"
StartWorker = Callable[..., Worker]


@pytest.fixture
def others(settings: Settings, broker: RedisBroker) -> Iterator[list[RedisBroker]]:
    """Two further processes, as far as Redis can tell, whose leases are short."""
    brokers = [RedisBroker(lambda: settings.model_copy(update={"lease_seconds": 1}), chain()) for _ in range(2)]
    for each in (broker, *brokers):
        dramatiq.actor(lambda number: None, broker=each, actor_name="t.act", queue_name=QUEUE)
    yield brokers
    for each in brokers:
        each.close()


def a_message(number: int, **options: Any) -> Message[Any]:
    return Message(queue_name=QUEUE, actor_name="t.act", args=(number,), kwargs={}, options=options)


def fetched(broker: RedisBroker, count: int = 1) -> list[int]:
    return [delivery.args[0] for delivery in broker.fetch(QUEUE, count)[0]]


def test_priorities_hold_across_processes_and_five_is_that_of_silence(
    broker: RedisBroker, others: list[RedisBroker]
) -> None:
    said = [9, None, 0, 5, 4, 6, -7, 3, 12, 5, None, 1]
    for number, priority in enumerate(said):
        broker.send(a_message(number, **({} if priority is None else {"priority": priority})))
    workers = itertools.cycle(others)
    order = [number for _ in range(6) for number in fetched(next(workers), 2)]
    assert order == [2, 6, 11, 7, 4, 1, 3, 9, 10, 5, 0, 8]


def test_a_plain_actor_that_names_no_priority_has_five(broker: RedisBroker) -> None:
    for name, options in {
        "silent": {},
        "four": {"priority": 4},
        "six": {"priority": 6},
        "least": {"priority": -1},
    }.items():
        dramatiq.actor(lambda: None, broker=broker, actor_name=name, **options)
    for name in ("silent", "six", "four", "least"):
        broker.get_actor(name).send()
    broker.get_actor("silent").send_with_options(priority=0)
    names = [delivery.actor_name for delivery in broker.fetch(QUEUE, 9)[0]]
    assert names == ["least", "silent", "four", "silent", "six"]


@pytest.mark.parametrize("backlog", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_backlog_of_low_priority_makes_no_fetch_dearer(
    broker: RedisBroker, others: list[RedisBroker], redis_server: RedisServer, backlog: int
) -> None:
    def cost_of_high_ones() -> tuple[float, int]:
        """Commands and microseconds inside of the server for fifty fetches."""
        broker.send_many([a_message(number, priority=1) for number in range(100)])
        before, commands = total_calls(redis_server, "evalsha"), commands_of(redis_server)
        for number in range(0, 100, 2):
            assert fetched(broker, 2) == [number, number + 1]
        after = total_calls(redis_server, "evalsha")
        assert after[0] - before[0] == 50
        return after[1] - before[1], commands_of(redis_server) - commands

    assert fetched(broker) == []  # the script is loaded
    broker.send_many([a_message(-1, priority=8) for _ in range(1000)])
    few_usec, few_commands = cost_of_high_ones()
    for _ in range(0, backlog - 1000, 1000):
        assert not broker.send_many([a_message(-1, priority=8) for _ in range(1000)]).failed
    many_usec, many_commands = cost_of_high_ones()
    assert many_commands == few_commands
    assert many_usec < few_usec * 3


def test_what_was_delayed_failed_or_lost_with_its_worker_comes_back_to_its_place(
    broker: RedisBroker, others: list[RedisBroker]
) -> None:
    """Case 02-D20: the place is that of the original send."""
    dying, _ = others
    for number in range(6):
        broker.send(a_message(number), delay_ms=400 if number == 1 else None)
    assert fetched(dying) == [0]
    [failing] = broker.fetch(QUEUE, 1)[0]
    assert failing.args[0] == 2
    failing.outcome = RetryLater(failing.copy_for_retry("trace"), 300, Failure("ValueError", "no", "trace"))
    broker.settle(QUEUE, [settlement_of(failing)])
    time.sleep(1.05)  # all have come due, and the lease of the first has ended
    assert fetched(broker, 4) == [0, 1, 2, 3]
    assert fetched(broker, 4) == [4, 5]


def test_those_that_fall_due_at_one_instant_come_by_priority_and_then_by_their_send(
    broker: RedisBroker, others: list[RedisBroker]
) -> None:
    """Case 02-D20: one hundred of mixed priority."""
    due_at = time.time() + 0.4
    for number in range(100):
        delay_ms = int((due_at - time.time()) * 1000)
        broker.send(a_message(number, priority=number * 7 % 10), delay_ms=delay_ms)
    time.sleep(0.5)
    workers = itertools.cycle(others)
    order = [number for _ in range(10) for number in fetched(next(workers), 10)]
    assert order == sorted(range(100), key=lambda number: (number * 7 % 10, number))


@pytest.mark.parametrize("seconds", [0.05, 0.001, 0.0])
def test_equal_jobs_start_in_the_order_of_their_sends_also_under_steady_load(
    broker: RedisBroker, start_worker: StartWorker, seconds: float
) -> None:
    """Case 02-D19: one thread; also while it holds some of them ahead."""
    order: list[int] = []

    @dramatiq.actor(broker=broker)
    def take(number: int) -> None:
        order.append(number)
        time.sleep(seconds)

    broker.send_many([take.message(number) for number in range(30)])
    start_worker(threads=1)
    for number in range(30, 60):
        take.send(number)
        time.sleep(0.01)
    eventually(lambda: len(order) == 60)
    assert order == list(range(60))


@pytest.mark.parametrize("how", ["delayed", "failed"])
def test_an_urgent_job_that_waited_goes_before_those_that_did_not(
    broker: RedisBroker, start_worker: StartWorker, how: str
) -> None:
    """Case 02-D20: one slot, four low ones, and a high one that becomes ready while the second runs."""
    order: list[str] = []

    @dramatiq.actor(broker=broker, priority=8)
    def low() -> None:
        order.append("low")
        time.sleep(0.6)

    @dramatiq.actor(broker=broker, priority=2, min_backoff=900, max_backoff=900)
    def high() -> None:
        order.append("high")
        if how == "failed" and order.count("high") == 1:
            raise ConnectionError("not yet")

    for _ in range(4):
        low.send()
    high.send_with_options(delay=900 if how == "delayed" else None)
    start_worker(threads=1)
    eventually(lambda: len(order) == (5 if how == "delayed" else 6))
    assert order[-5:] == ["low", "low", "high", "low", "low"]


def test_a_lower_priority_waits_for_as_long_as_a_higher_one_is_there(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """Case 02-D20: the written rule is strict, with no ageing."""
    order: list[str] = []
    go = threading.Event()

    @dramatiq.actor(broker=broker, priority=9)
    def low() -> None:
        order.append("low")

    @dramatiq.actor(broker=broker, priority=1)
    def high(successors: int) -> None:
        go.wait(10)
        order.append("high")
        time.sleep(0.02)
        if successors:
            high.send(successors - 1)

    high.send(30)
    high.send(0)
    start_worker(threads=1)
    low.send()
    go.set()
    eventually(lambda: "low" in order)
    assert order == ["high"] * 32 + ["low"]
