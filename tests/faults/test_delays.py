"""Delayed jobs wait in Redis: held by nobody, run once, on time, and in nobody's way."""

import time

import dramatiq
import psutil
import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.settlement import settlement_of
from service.middleware import chain
from service.queues import QUEUES
from service.settings import load_settings
from tests.commands import commands_of, total_calls
from tests.e2e.conftest import Service
from tests.servers import RedisServer, eventually
from tests.starts import ACTORS, nap, note, percentile, starts

HOUR_MS = 3_600_000
SHORT_LEASE = {**ACTORS, "CALLBOARD_LEASE_SECONDS": "1"}


def start_workers(service: Service, *names: str, **environment: str) -> None:
    for name in names:
        service.start(name, "dramatiq", "service.actors", "--processes", "1", "--threads", "4", **environment)
    for name in names:
        eventually(lambda name=name: service.is_ready(name), 60)


def test_a_delay_longer_than_the_lease_is_waited_out_in_redis_and_the_job_runs_once(
    service: Service, broker: RedisBroker
) -> None:
    """Case 02-D01: three workers, a lease of 1 s, delays of 2 to 6.4 s."""
    start_workers(service, "first", "second", "third", **SHORT_LEASE)
    due: dict[str, float] = {}
    messages = []
    for number in range(50):
        delay_ms = 2000 + number * 90
        message = note(f"j{number}")
        due[f"j{number}"] = time.time() + delay_ms / 1000
        broker.send(message, delay_ms=delay_ms)
        messages.append(message)
    keys = Keys(broker.namespace, "default")
    while waiting := [n for n in range(50) if time.time() < due[f"j{n}"] - 0.5]:
        record = broker.find_record(messages[waiting[0]].message_id)
        assert record is not None
        assert record["state"] == "scheduled"
        held = {entry.decode() for entry in broker.client.hkeys(keys.leases)}
        assert not held & {messages[number].message_id for number in waiting}, "held by nobody"
        time.sleep(0.2)
    eventually(lambda: broker.wire.backlog("default") == 0)
    seen = starts(service)
    assert sorted(start.word for start in seen) == sorted(due), "each once"
    assert all(start.at >= due[start.word] - 0.002 for start in seen), "none before it was due"
    assert len({start.pid for start in seen}) > 1, "by more than one of the workers"


@pytest.mark.parametrize("far", [50_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_what_waits_for_an_hour_costs_a_worker_nothing_and_holds_up_nothing(
    service: Service, broker: RedisBroker, far: int
) -> None:
    service.start_worker("worker", **ACTORS)
    broker.declare_queue("default")
    broker.send_many([note(f"warm{number}") for number in range(500)])
    eventually(lambda: len(starts(service)) == 500)
    worker = psutil.Process(starts(service)[0].pid)
    before = worker.memory_info().rss
    for _ in range(0, far, 10_000):
        assert not broker.send_many([nap() for _ in range(10_000)], delay_ms=HOUR_MS).failed
    due: dict[str, float] = {}
    for number in range(200):
        delay_ms = 300 + number * 10
        due[f"near{number}"] = time.time() + delay_ms / 1000
        broker.send(note(f"near{number}"), delay_ms=delay_ms)
    eventually(lambda: len(starts(service)) == 700)
    assert worker.memory_info().rss - before < 5 * 2**20
    late = [start.at - due[start.word] for start in starts(service)[500:]]
    assert min(late) > -0.002
    assert percentile(late, 0.99) < 0.1
    assert broker.client.zcard(Keys(broker.namespace, "default").delayed) == far


@pytest.mark.parametrize("flood", [15_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_many_that_fall_due_in_one_second_stall_neither_the_other_queues_nor_a_higher_priority(
    service: Service, broker: RedisBroker, flood: int
) -> None:
    service.start("worker", "callboard", "worker", **ACTORS)
    eventually(lambda: service.is_ready("worker"), 60)
    keys = Keys(broker.namespace, "default")
    served = [policy.name for policy in QUEUES.values() if not policy.needs_database]
    due_at = time.time() + 2 + flood / 10_000
    for _ in range(0, flood, 1000):
        delay_ms = int((due_at - time.time()) * 1000)
        assert not broker.send_many([nap(0.001) for _ in range(1000)], delay_ms=delay_ms).failed
    assert time.time() < due_at, "they fall due together"
    time.sleep(max(due_at + 0.2 - time.time(), 0))
    sent: dict[str, float] = {}
    while broker.client.hlen(keys.messages) > flood / 10 and len(sent) < 100:
        for queue in served:
            word = f"{queue}-{len(sent)}"
            sent[word] = time.time()
            broker.send(note(word, queue=queue, priority=0))
        time.sleep(0.1)
    assert len(sent) > 30, "they met the flood"
    eventually(lambda: len(starts(service)) == len(sent), 60)
    waited = [start.at - sent[start.word] for start in starts(service)]
    assert max(waited) < 1
    eventually(lambda: broker.wire.backlog("default") == 0, 120)


@pytest.mark.parametrize("lapsed", [10_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_the_leases_of_many_dead_workers_come_back_in_bounded_calls(
    own_redis: RedisServer, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, lapsed: int
) -> None:
    """Case 02-D03: all at once, as after the death of a few hundred processes.

    They go to their old places, before what was sent after them; what is more urgent than they are waits for none.
    """
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    settings = load_settings()
    dead, fresh = [RedisBroker(lambda: settings, chain()) for _ in range(2)]
    for each in (dead, fresh):
        dramatiq.actor(lambda: None, broker=each, actor_name="nap.default", queue_name="default")
    messages = [nap() for _ in range(lapsed)]
    assert not dead.send_many(messages).failed
    held = [delivery.message_id for _ in range(lapsed // 1000) for delivery in dead.fetch("default", 1000)[0]]
    assert held == [message.message_id for message in messages]
    keys = Keys(fresh.namespace, "default")
    fresh.client.zunionstore(keys.deadlines, {keys.deadlines: 0.5})  # all lapse now
    urgent, usual = [nap(priority=1) for _ in range(10)], [nap() for _ in range(10)]
    assert not fresh.send_many([*urgent, *usual]).failed
    before, commands = total_calls(own_redis, "evalsha"), commands_of(own_redis)
    order: list[str] = []
    calls = 0
    while len(order) < lapsed + 20:
        calls += 1
        assert calls <= lapsed / 200 + 2, "each returns as many as it takes"
        fetched = fresh.fetch("default", 200)[0]
        order += [delivery.message_id for delivery in fetched]
        fresh.settle("default", [settlement_of(delivery) for delivery in fetched])
    after = total_calls(own_redis, "evalsha")
    assert (after[1] - before[1]) / (after[0] - before[0]) < 50_000, "microseconds for a call"
    assert (commands_of(own_redis) - commands) / calls < 200 + 50, "a lapse is counted for each, all else together"
    assert order[:10] == [message.message_id for message in urgent]
    assert sorted(order[10:-10]) == sorted(held)
    assert order[-10:] == [message.message_id for message in usual], "sent after them"
    assert fresh.wire.backlog("default") == 0
    dead.close()
    fresh.close()
