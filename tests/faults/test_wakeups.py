"""A message wakes one idle worker that can start it, whatever has become of the others; idling costs little."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.middleware import chain
from service.queues import QUEUES
from service.settings import Settings
from tests.commands import client_commands, total_calls
from tests.e2e.conftest import Service
from tests.servers import RedisServer, eventually
from tests.starts import ACTORS, note, percentile, starts

#: Asks by itself every 40 s, and so stands first in the order of waking.
SLEEPS_LONG = {**ACTORS, "CALLBOARD_LEASE_SECONDS": "120"}


@pytest.fixture
def idlers(settings: Settings) -> Iterator[list[RedisBroker]]:
    """Fifty idle processes, as far as Redis can tell."""
    brokers = [RedisBroker(lambda: settings, chain()) for _ in range(50)]
    for broker in brokers:
        broker.declare_queue("default")
        broker.wakeups.start()
    eventually(lambda: all(broker.wakeups.subscribed for broker in brokers))
    yield brokers
    for broker in brokers:
        broker.wakeups.stop()
        broker.close()


def fall_asleep(brokers: list[RedisBroker]) -> dict[RedisBroker, int]:
    """Ask once in vain, and note how often each was called."""
    for broker in brokers:
        assert broker.fetch("default", 1)[0] == []
    return {broker: broker.wakeups.count("default") for broker in brokers}


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one by one"])
@pytest.mark.parametrize("count", [1, 10])
def test_of_fifty_idle_workers_as_many_are_woken_as_there_are_messages(
    idlers: list[RedisBroker], broker: RedisBroker, redis_server: RedisServer, count: int, together: bool
) -> None:
    broker.declare_queue("default")
    calls = fall_asleep(idlers)
    published, _ = total_calls(redis_server, "publish")
    messages = [note(f"j{number}") for number in range(count)]
    for batch in [messages] if together else [[message] for message in messages]:
        assert not broker.send_many(batch).failed
    eventually(lambda: sum(idler.wakeups.count("default") for idler in idlers) >= sum(calls.values()) + count)
    assert total_calls(redis_server, "publish")[0] - published == count
    assert [idler.wakeups.count("default") - calls[idler] for idler in idlers].count(1) == count, "each of them once"


def test_an_idle_worker_of_all_queues_asks_for_each_every_third_of_a_lease(
    service: Service, broker: RedisBroker, redis_server: RedisServer
) -> None:
    """With ten queues that is one command a second, at a lease of 30 s; and each 15 s it says that it lives."""
    service.start("worker", "callboard", "worker", **ACTORS)
    eventually(lambda: service.is_ready("worker"), 60)
    served = [policy.name for policy in QUEUES.values() if not policy.needs_database]
    waiters = [Keys(broker.namespace, queue).waiters for queue in served]
    eventually(lambda: all(broker.client.exists(key) for key in waiters))
    time.sleep(1)  # it has subscribed, and asked once more for that
    with client_commands(redis_server) as commands:
        time.sleep(9.5)
    of_new_connections = commands["HELLO"] + commands["CLIENT"]
    assert 1 <= commands.all - of_new_connections <= len(served) + 1


def test_an_idle_worker_starts_a_job_at_once(service: Service, broker: RedisBroker) -> None:
    """The aim is 5 ms at p99, which `bench/` measures where nothing else runs. Here: it waits for no timer."""
    service.start_worker("worker", **ACTORS)
    sent: dict[str, float] = {}
    for number in range(100):
        sent[f"j{number}"] = time.time()
        broker.send(note(f"j{number}"))
        time.sleep(0.02)  # it is idle again
    eventually(lambda: len(starts(service)) == 100)
    waited = [start.at - sent[start.word] for start in starts(service)]
    assert percentile(waited, 0.25) < 0.02, "no timer of a worker or consumer"
    assert max(waited) < 5, "no poll"


def starts_at_once(service: Service, broker: RedisBroker, queue: str) -> None:
    sent_at = time.time()
    broker.send(note("urgent", queue=queue))
    eventually(lambda: any(start.word == "urgent" for start in starts(service)))
    [urgent] = [start for start in starts(service) if start.word == "urgent"]
    assert urgent.at - sent_at < 1


def test_a_message_whose_waiter_is_dead_starts_elsewhere_at_once(service: Service, broker: RedisBroker) -> None:
    def listening() -> int:
        return len(broker.client.pubsub_channels(f"{broker.namespace}:wake:*"))

    service.start_worker("alive", **ACTORS)
    for name in ("doomed", "doomed-too"):
        service.start_worker(name, **SLEEPS_LONG)
    eventually(lambda: broker.client.zcard(Keys(broker.namespace, "webhooks").waiters) == 3)
    for name in ("doomed", "doomed-too"):
        os.killpg(service.processes[name].pid, signal.SIGKILL)
    eventually(lambda: listening() == 1)  # until then the server takes them to be alive
    starts_at_once(service, broker, "webhooks")


def test_a_message_whose_waiter_is_draining_starts_elsewhere_at_once(service: Service, broker: RedisBroker) -> None:
    leaving = service.start_worker("leaving", **SLEEPS_LONG)
    broker.send(note("long", 8.0))
    eventually(lambda: len(starts(service)) == 1)
    service.start_worker("staying", **ACTORS)
    eventually(lambda: broker.client.zcard(Keys(broker.namespace, "webhooks").waiters) == 2)
    leaving.send_signal(signal.SIGTERM)
    eventually(lambda: "Shutting down" in service.log("leaving"))
    starts_at_once(service, broker, "webhooks")
    assert leaving.poll() is None, "it was still draining"


@pytest.mark.parametrize(("busy_with", "queue"), [("default", "webhooks"), ("reports", "media"), ("default", "ai")])
def test_a_message_whose_waiter_has_no_thread_free_starts_elsewhere_at_once(
    service: Service, broker: RedisBroker, busy_with: str, queue: str
) -> None:
    service.start_worker("full", **SLEEPS_LONG)
    for number in range(4):
        broker.send(note(f"long{number}", 8.0, queue=busy_with))
    eventually(lambda: len(starts(service)) == 4)
    service.start_worker("free", **ACTORS)
    eventually(lambda: broker.client.zcard(Keys(broker.namespace, queue).waiters) == 2)
    starts_at_once(service, broker, queue)


def test_a_delayed_message_whose_waiter_is_busy_when_it_comes_due_starts_elsewhere_at_once(
    service: Service, broker: RedisBroker
) -> None:
    """Redis knows of one worker that asks at that time, and so calls nobody else. The other asks after 30 s."""
    service.start_worker("free", "--queues", "webhooks", **{**ACTORS, "CALLBOARD_LEASE_SECONDS": "90"})
    service.start_worker("full", **SLEEPS_LONG)
    eventually(lambda: broker.client.zcard(Keys(broker.namespace, "webhooks").waiters) == 2)
    time.sleep(0.5)  # both have asked once more, having subscribed
    due_at = time.time() + 3
    broker.send(note("due", queue="webhooks"), delay_ms=3000)
    for number in range(4):
        broker.send(note(f"long{number}", 10.0))
    eventually(lambda: len(starts(service)) == 4)
    assert time.time() < due_at, "it is full by then"
    eventually(lambda: len(starts(service)) == 5)
    *longs, due = starts(service)
    assert due.word == "due"
    assert due.pid not in {long.pid for long in longs}
    assert due.at - due_at < 1
