"""A job is cancelled while its worker is stopped, killed, cut off or without its server, and by several at once."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.queue_acts import QueueActs
from service.broker.workers import live_workers
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually

ACTORS = {"CALLBOARD_ACTORS": "fault_jobs,isolated_jobs,cancel_jobs"}


def cancel(broker: RedisBroker, job_id: str) -> str:
    act = JobActs(broker).cancel(job_id, by="ada", why="a test")
    assert act
    assert act.done
    return act.state


def test_a_job_of_a_paused_worker_is_not_started_by_another_and_ends_with_its_lease(
    service: Service, broker: RedisBroker
) -> None:
    paused = service.start_worker("paused", **{**LEASE, **ACTORS})
    message = send(broker, "cancel.loop")
    eventually(lambda: counts(service)["loop"] == 1)
    os.killpg(paused.pid, signal.SIGSTOP)
    assert cancel(broker, message.message_id) == "running"
    service.start_worker("other", **{**LEASE, **ACTORS})
    eventually(lambda: state_of(broker, message) == "cancelled")
    os.killpg(paused.pid, signal.SIGCONT)
    eventually(lambda: counts(service)["interrupted"] == 1, 10)
    assert counts(service)["loop"] == 1
    later = send(broker, "fault.good", "later", 0.0)
    eventually(lambda: state_of(broker, later) == "succeeded")
    assert state_of(broker, message) == "cancelled"
    assert not broker.client.exists(Keys(broker.namespace, "default").cancels)


def test_a_job_whose_worker_is_killed_after_the_cancel_never_starts_again(
    service: Service, broker: RedisBroker
) -> None:
    worker = service.start_worker("first", **{**LEASE, **ACTORS})
    message = send(broker, "fault.good", "blocked", 60.0)  # in C, where nothing interrupts it
    eventually(lambda: counts(service)["start-blocked"] == 1)
    assert cancel(broker, message.message_id) == "running"
    os.killpg(worker.pid, signal.SIGKILL)
    service.start_worker("second", **{**LEASE, **ACTORS})
    eventually(lambda: state_of(broker, message) == "cancelled")
    time.sleep(1)
    assert counts(service) == {"start-blocked": 1}


def test_a_job_in_blocked_c_code_is_ended_where_it_has_a_process_of_its_own(
    service: Service, broker: RedisBroker
) -> None:
    service.start_worker("worker", **ACTORS)
    message = send(broker, "isolated.endless")
    eventually(lambda: len(service.notes()) == 2)
    [child] = [int(line.split()[0].partition("-")[2]) for line in service.notes() if line.startswith("grandchild")]
    since = time.monotonic()
    assert cancel(broker, message.message_id) == "running"
    eventually(lambda: state_of(broker, message) == "cancelled", 2)
    assert time.monotonic() - since < 2
    eventually(lambda: not os.path.exists(f"/proc/{child}"), 2)  # noqa: PTH110
    after = send(broker, "fault.good", "after", 0.0)
    eventually(lambda: state_of(broker, after) == "succeeded")


def test_what_no_worker_was_up_for_does_not_start_when_one_is(service: Service, broker: RedisBroker) -> None:
    """Case 04-D44: a revoked job with a delay, forgotten by a restart of the workers."""
    broker.declare_queue("default")
    later, now = (send(broker, "fault.good", word, 0.0) for word in ("later", "now"))
    JobActs(broker).reschedule(later.message_id, by="ada", delay_ms=1500)
    assert [cancel(broker, each.message_id) for each in (later, now)] == ["cancelled", "cancelled"]
    service.start_worker("worker", **ACTORS)
    other = send(broker, "fault.good", "other", 0.0)
    eventually(lambda: state_of(broker, other) == "succeeded")
    time.sleep(2)
    assert counts(service) == {"start-other": 1, "end-other": 1}


@pytest.fixture
def own_broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    service.environment |= {"REDIS_URL": own_redis.url}
    with broker_at(own_redis.url, monkeypatch) as broker:
        yield broker


def test_cancellations_and_pauses_survive_a_restart_of_redis(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker
) -> None:
    with own_redis.client() as control:
        control.config_set("appendfsync", "always")
    worker = service.start_worker("worker", **ACTORS)
    running = send(own_broker, "cancel.loop")
    eventually(lambda: counts(service)["loop"] == 1)
    QueueActs(own_broker).pause("default", by="ada", why="a move")
    waiting = send(own_broker, "fault.good", "waiting", 0.0)
    os.killpg(worker.pid, signal.SIGSTOP)
    assert cancel(own_broker, running.message_id) == "running"
    own_redis.kill()
    own_redis.start()
    os.killpg(worker.pid, signal.SIGCONT)
    eventually(lambda: state_of(own_broker, running) == "cancelled", 10)
    assert counts(service)["loop"] == 1
    eventually(lambda: service.is_ready("worker"))
    time.sleep(1)
    assert state_of(own_broker, waiting) == "pending"
    QueueActs(own_broker).resume("default", by="ada")
    eventually(lambda: state_of(own_broker, waiting) == "succeeded", 5)


def test_a_worker_whose_subscription_has_just_broken_stops_the_job_within_two_seconds(
    service: Service, broker: RedisBroker
) -> None:
    """The call reaches nobody: the worker looks by itself."""
    service.start_worker("worker", **ACTORS)
    message = send(broker, "cancel.loop")
    eventually(lambda: counts(service)["loop"] == 1)
    subscriptions = broker.client.client_list(_type="pubsub")
    assert subscriptions
    for subscription in subscriptions:
        broker.client.client_kill_filter(_id=subscription["id"])
    since = time.monotonic()
    assert cancel(broker, message.message_id) == "running"
    eventually(lambda: state_of(broker, message) == "cancelled", 3)
    assert time.monotonic() - since < 2


def test_of_several_who_cancel_and_replay_at_once_the_end_is_one(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", **ACTORS)
    letters, acts = DeadLetters(broker), JobActs(broker)
    for number in range(20):
        message = send(broker, "cancel.dies")
        eventually(lambda message=message: state_of(broker, message) == "dead")
        letter = letters.get(message.message_id)
        assert letter
        with ThreadPoolExecutor(4) as pool:
            tried = [
                pool.submit(letters.replay, letter, by="ada"),
                pool.submit(acts.cancel, message.message_id, by="bob"),
                pool.submit(letters.replay, letter, by="eve"),
                pool.submit(acts.cancel, message.message_id, by="kim"),
            ]
        answers = [each.result() for each in tried]
        eventually(lambda: broker.wire.backlog("default") == 0)
        final = state_of(broker, message)
        cancelled = [answer for answer in (answers[1], answers[3]) if answer.done]
        assert final == ("cancelled" if cancelled else "dead"), (number, answers)
        assert not broker.client.exists(Keys(broker.namespace, "default").cancels)


def test_a_draining_worker_says_so_and_a_dead_one_is_forgotten(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ACTORS)
    message = send(broker, "cancel.loop")
    eventually(lambda: counts(service)["loop"] == 1)
    [worker] = live_workers(broker)
    assert (worker.draining, worker.pid > 1, "default" in worker.queues) == (False, True, True)
    os.kill(service.processes["first"].pid, signal.SIGTERM)
    eventually(lambda: live_workers(broker)[0].draining, 5)
    assert [job.job_id for job in live_workers(broker)[0].jobs] == [message.message_id]
    assert cancel(broker, message.message_id) == "running"
    eventually(lambda: state_of(broker, message) == "cancelled", 2)  # it is not called any more, and looks
    eventually(lambda: live_workers(broker) == [], 10)
    key = Keys(broker.namespace, "default").workers
    broker.client.hset(key, "gone", b"1000 " + b'{"host":"h"}')
    assert live_workers(broker) == []
    service.start_worker("second", **ACTORS)
    eventually(lambda: len(live_workers(broker)) == 1)
    assert broker.client.hlen(key) == 1, "what has said nothing for long is removed"
