"""Idempotency keys where workers die and Redis is away: one effect for each key, and no key without a holder."""

import json
import os
import signal
import threading
import time

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.faults.test_crashes import counts
from tests.jobs import state_of
from tests.servers import RedisServer, eventually

ONCE = {"CALLBOARD_LEASE_SECONDS": "2", "CALLBOARD_ACTORS": "once_jobs"}


def send_keyed(broker: RedisBroker, ref: str, seconds: float) -> Message:
    message = Message(
        "default", "once.effect", (), {"ref": ref, "seconds": seconds}, {"idempotency_key": f"once:{ref}"}
    )
    broker.declare_queue("default")
    broker.send(message)
    return message


@pytest.mark.timeout(120)
def test_twenty_duplicates_have_one_effect_though_their_holder_is_killed(service: Service, broker: RedisBroker) -> None:
    names = ["first", "second", "third"]
    for name in names:
        service.start_worker(name, **ONCE)
    messages = [send_keyed(broker, "a", 2.0) for _ in range(20)]
    eventually(lambda: counts(service)["start-a"] == 1)
    eventually(lambda: [state_of(broker, message) for message in messages].count("waiting") == 19)
    os.kill(int(service.notes()[0].split()[1]), signal.SIGKILL)
    eventually(lambda: counts(service)["start-a"] == 2, 15)
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages), 30)
    assert counts(service)["effect-a"] == 1
    records = [broker.find_record(message.message_id) or {} for message in messages]
    [first] = [record for record in records if "skipped" not in record]
    assert {json.loads(record["result"]) for record in records} == {first["job_id"]}
    assert {record["attempt"] for record in records} == {"1"}, "no attempt is counted"
    knows = [line.split()[0].rsplit("-", 1) for line in service.notes() if line.startswith("knows-")]
    assert [name for name, _ in knows] == ["knows-once:a"] * 2, "in a process of its own too"
    assert int(knows[0][1]) < int(knows[1][1])


@pytest.mark.timeout(120)
def test_duplicates_in_two_queues_have_one_effect_though_their_holder_is_killed(
    service: Service, broker: RedisBroker
) -> None:
    for name in ("first", "second"):
        service.start_worker(name, **ONCE)
    messages = [
        Message(queue, actor, (), {"ref": "w"}, {"idempotency_key": "wide:w"})
        for queue, actor in (("default", "once.here"), ("email", "once.there"))
        for _ in range(4)
    ]
    for message in messages:
        broker.send(message)
    eventually(lambda: counts(service)["start-w"] == 1)
    os.kill(int(service.notes()[0].split()[1]), signal.SIGKILL)
    eventually(lambda: counts(service)["start-w"] == 2, 15)
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages), 30)
    assert counts(service)["effect-w"] == 1
    records = [broker.find_record(message.message_id) or {} for message in messages]
    assert len({record["result"] for record in records}) == 1
    assert [record.get("skipped") for record in records].count(None) == 1
    assert {record["attempt"] for record in records} == {"1"}


def test_while_redis_is_away_no_keyed_job_starts_and_none_loses_an_attempt(
    own_redis: RedisServer, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_at(own_redis.url, monkeypatch) as broker:
        runs: list[str] = []
        go_on = threading.Event()

        @dramatiq.actor(broker=broker)
        def work(word: str) -> str:
            runs.append(word)
            go_on.wait(20)
            return word

        worker = Worker(broker, worker_timeout=100, worker_threads=2)
        broker.emit_after("process_boot")
        worker.start()
        first = work.send_with_options(args=("first",), idempotency_key="k")
        eventually(lambda: runs == ["first"])
        others = [work.send_with_options(args=("other",), idempotency_key=key) for key in ("k", "l", "k")]
        eventually(lambda: sorted(runs) == ["first", "other"])
        late = [work.send_with_options(args=("late",), idempotency_key="m") for _ in range(2)]
        own_redis.client().config_set("appendfsync", "always")
        own_redis.kill()
        go_on.set()
        time.sleep(1.0)
        assert len(runs) <= 3, "what was leased before may run, and nothing else"
        own_redis.start()
        eventually(lambda: all(state_of(broker, each) == "succeeded" for each in [first, *others, *late]), 40)
        assert sorted(runs) == ["first", "late", "other"]
        records = [broker.find_record(each.message_id) or {} for each in [first, *others, *late]]
        assert {record["attempt"] for record in records} == {"1"}
        assert [json.loads(record["result"]) for record in records] == [
            "first",
            "first",
            "other",
            "first",
            "late",
            "late",
        ]
        assert broker.client.hlen(Keys(broker.namespace, "default").once) == 3
        worker.stop(timeout=5000)
