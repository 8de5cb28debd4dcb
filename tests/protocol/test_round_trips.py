"""How often a process asks Redis: by counts of commands, which hold on every machine."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import PayloadError
from tests.brokers import broker_at
from tests.commands import client_commands
from tests.servers import RedisServer, eventually

StartWorker = Callable[..., Worker]


def a_message(number: int = 0, **fields: Any) -> Message[Any]:
    return Message(
        **{"queue_name": "default", "actor_name": "t.act", "args": (number,), "kwargs": {}, "options": {}, **fields}
    )


@pytest.fixture
def own_broker(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    with broker_at(own_redis.url, monkeypatch) as broker:
        yield broker


def test_ten_thousand_messages_take_a_handful_of_round_trips(broker: RedisBroker, redis_server: RedisServer) -> None:
    broker.send(a_message())  # the script is loaded
    messages = [a_message(number) for number in range(10_000)]
    with client_commands(redis_server) as commands:
        report = broker.send_many(messages)
    assert report.stored == messages
    assert report.failed == []
    assert broker.wire.backlog("default") == 1 + 10_000
    assert commands["EVALSHA"] <= 20


def test_of_a_batch_that_loses_its_server_midway_the_report_tells_each_message_apart(
    own_broker: RedisBroker, own_redis: RedisServer
) -> None:
    class KillMidway(dramatiq.Middleware):
        sent = 0

        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            self.sent += 1
            if self.sent == 3001:
                own_redis.kill()

    own_broker.add_middleware(KillMidway())
    messages = [a_message(number) for number in range(6000)]
    report = own_broker.send_many(messages)
    assert report.stored == messages[: len(report.stored)]
    assert [message for message, _ in report.failed] == messages[len(report.stored) :]
    own_redis.start()
    keys = Keys(own_broker.namespace, "default")
    there = {entry.decode() for entry in own_broker.client.hkeys(keys.messages)}
    assert there == {message.message_id for message in report.stored}
    assert not own_broker.send_many([message for message, _ in report.failed]).failed
    assert own_broker.wire.backlog("default") == 6000


@pytest.mark.parametrize(
    "bad",
    [{"message_id": "mine"}, {"args": (object(),)}, {"options": {"priority": "high"}}],
    ids=["id", "args", "options"],
)
def test_a_bad_message_is_named_and_keeps_no_other_back(broker: RedisBroker, bad: dict[str, Any]) -> None:
    messages = [a_message(number) for number in range(1500)]
    messages[1200] = a_message(**bad)
    report = broker.send_many(messages)
    [(refused, error)] = report.failed
    assert refused is messages[1200]
    assert isinstance(error, ValueError | TypeError | PayloadError)
    assert report.stored == [*messages[:1200], *messages[1201:]]
    assert broker.wire.backlog("default") == 1499


def test_a_lone_job_costs_an_idle_worker_two_calls(
    broker: RedisBroker, start_worker: StartWorker, redis_server: RedisServer
) -> None:
    done: list[int] = []

    @dramatiq.actor(broker=broker, actor_name="t.act")
    def act(number: int) -> None:
        done.append(number)

    start_worker()
    eventually(lambda: broker.client.zcard(Keys(broker.namespace, "default").waiters) == 1)
    with client_commands(redis_server) as commands:
        for number in range(20):
            broker.send(a_message(number))
            eventually(lambda: broker.wire.backlog("default") == 0)
    assert len(done) == 20
    # Besides: each of three scripts may have had to be loaded first, and who subscribes asks once more.
    assert commands["EVALSHA"] - 20 <= 20 * 2 + 4


def test_a_busy_worker_makes_one_call_for_five_jobs_at_most(
    broker: RedisBroker, start_worker: StartWorker, redis_server: RedisServer
) -> None:
    done: list[int] = []

    @dramatiq.actor(broker=broker, actor_name="t.act")
    def act(number: int) -> None:
        done.append(number)

    assert not broker.send_many([a_message(number) for number in range(5000)]).failed
    with client_commands(redis_server) as commands:
        start_worker(threads=8)
        eventually(lambda: len(done) == 5000, 60)
    assert commands["EVALSHA"] <= 5000 * 0.2
    eventually(lambda: broker.client.hlen(Keys(broker.namespace, "default").messages) == 0)


def leased(broker: RedisBroker, *queues: str) -> int:
    return sum(broker.client.hlen(Keys(broker.namespace, queue).leases) for queue in queues)


@pytest.mark.parametrize("queues", [("default",), ("default", "email", "webhooks", "reports", "ai")], ids=len)
def test_a_process_with_long_jobs_holds_what_its_threads_run_and_leaves_the_rest_to_others(
    broker: RedisBroker, start_worker: StartWorker, queues: tuple[str, ...]
) -> None:
    running: list[str] = []
    turns = threading.Semaphore(0)
    for queue in queues:

        @dramatiq.actor(broker=broker, actor_name=queue, queue_name=queue)
        def long() -> None:
            running.append("a job")
            turns.acquire(timeout=20)

        broker.send_many([long.message() for _ in range(16)])
    start_worker(threads=4)
    for ended in range(0, 12, 3):
        eventually(lambda ended=ended: len(running) == 4 + ended)
        eventually(lambda: leased(broker, *queues) == 4)
        eventually(lambda: broker.link.is_up)  # also those that have no thread to fetch for
        held = []
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            held.append(leased(broker, *queues))
        assert set(held) == {4}
        turns.release(3)
    turns.release(100)
    eventually(lambda: len(running) == 16 * len(queues))


def test_queues_of_long_jobs_take_turns_in_the_threads_that_they_share(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    order: list[str] = []

    @dramatiq.actor(broker=broker)
    def many() -> None:
        order.append("many")
        time.sleep(0.05)

    @dramatiq.actor(broker=broker, queue_name="email")
    def few() -> None:
        order.append("few")
        time.sleep(0.05)

    broker.send_many([many.message() for _ in range(60)])
    start_worker(threads=2)
    eventually(lambda: len(order) >= 4)
    broker.send_many([few.message() for _ in range(10)])
    eventually(lambda: len(order) == 70)
    assert order[:40].count("few") == 10, "they did not wait until the others were done"


def test_a_process_with_short_jobs_holds_about_twenty_milliseconds_of_work(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    done: list[int] = []

    @dramatiq.actor(broker=broker, actor_name="t.act")
    def act(number: int) -> None:
        time.sleep(0.001)
        done.append(number)

    broker.send_many([a_message(number) for number in range(4000)])
    start_worker(threads=4)
    held: list[int] = []
    while len(done) < 4000:
        held.append(leased(broker, "default"))
        time.sleep(0.005)
    # Four threads end four jobs a millisecond at most: 80 in 20 ms, besides those that run or wait to be settled.
    assert 2 * 4 < max(held) <= 4 + 80 + 100
