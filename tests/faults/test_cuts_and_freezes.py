"""Redis is cut off, stopped or restarted in the midst of fetches, settlements, delays and retries."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import BrokerUnavailable
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.proxy import Proxy
from tests.servers import RedisServer, eventually

WORKER = {"CALLBOARD_ACTORS": "fault_jobs,outages_jobs"}


@pytest.fixture
def own_broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """On a server of its own, as are the processes of the service."""
    service.environment |= {"REDIS_URL": own_redis.url, "CALLBOARD_REDIS_TIMEOUT_SECONDS": "1.5"}
    monkeypatch.setenv("CALLBOARD_REDIS_TIMEOUT_SECONDS", "1.5")
    with broker_at(own_redis.url, monkeypatch) as broker:
        yield broker


def counts(service: Service) -> Counter[str]:
    return Counter(line.split()[0] for line in service.notes())


def noted_at(service: Service, word: str) -> list[float]:
    return [float(line.split()[2]) for line in service.notes() if line.split()[0] == word]


def succeeded(broker: RedisBroker, messages: list[Message[Any]]) -> bool:
    return all(state_of(broker, message) == "succeeded" for message in messages)


def test_a_worker_that_was_cut_off_several_times_in_a_row_works_on(
    service: Service, proxy: Proxy, broker: RedisBroker
) -> None:
    """Case 02-D06."""
    service.start_worker("worker", **WORKER)
    sent = [send(broker, "fault.good", f"a{number}", 0.2) for number in range(20)]
    eventually(lambda: counts(service)["start-a0"] == 1)
    for _ in range(5):
        proxy.cut()
        time.sleep(0.3)
        proxy.mend()
        time.sleep(0.5)
    back_at = time.monotonic()
    sent += [send(broker, "fault.good", f"b{number}", 0.01) for number in range(20)]
    eventually(lambda: succeeded(broker, sent))
    eventually(lambda: service.is_ready("worker"))
    assert time.monotonic() - back_at < 10
    assert set(counts(service).values()) == {1}


def test_a_worker_is_not_ready_while_no_fetch_succeeds_and_alive_all_the_time(
    service: Service, proxy: Proxy, broker: RedisBroker
) -> None:
    """Case 02-D06: connections are made and broken, so that there is a link and no work."""
    service.start_worker("worker", **{**WORKER, "CALLBOARD_LEASE_SECONDS": "3"})
    fetches = proxy.lose_replies(lambda command: command[0] in (b"EVALSHA", b"EVAL"), float("inf"), also_empty=True)
    eventually(lambda: not service.is_ready("worker"))
    met = fetches.met
    while fetches.met < met + 10:
        assert not service.is_ready("worker")
        assert service.is_alive("worker")
    fetches.times = 0
    back_at = time.monotonic()
    eventually(lambda: service.is_ready("worker"))
    assert time.monotonic() - back_at < 5


def test_a_delayed_job_survives_a_restart_and_runs_when_due(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker
) -> None:
    """Case 02-D02."""
    with own_redis.client() as control:
        control.config_set("appendfsync", "always")
    service.start_worker("worker", **WORKER)
    own_broker.declare_queue("default")
    delayed: Message[Any] = Message(
        queue_name="default", actor_name="fault.good", args=("a", 0.0), kwargs={}, options={}
    )
    sent_at = time.time()
    own_broker.send(delayed, delay_ms=6000)
    own_redis.kill()
    # Also a worker that had nothing to ask for finds out at once.
    eventually(lambda: not service.is_ready("worker"), 4)
    own_redis.start()
    eventually(lambda: service.is_ready("worker"), 5)
    second_sent_at = time.time()
    second = send(own_broker, "fault.good", "b", 0.0)
    eventually(lambda: succeeded(own_broker, [second]))
    assert noted_at(service, "start-b")[0] - second_sent_at < 2
    eventually(lambda: succeeded(own_broker, [delayed]))
    [started] = noted_at(service, "start-a")
    assert 6 <= started - sent_at < 8
    keys = Keys(own_broker.namespace, "default")
    assert own_broker.wire.backlog("default") == 0
    assert own_broker.client.exists(keys.ready, keys.delayed, keys.leases, keys.deadlines, keys.lapses) == 0


def test_a_retry_that_falls_into_the_outage_is_made_when_it_is_over(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker
) -> None:
    with own_redis.client() as control:
        control.config_set("appendfsync", "always")
    service.start_worker("worker", **WORKER)
    failing = [send(own_broker, "outage.fail_once", f"f{number}", 1.0) for number in range(3)]
    ending = send(own_broker, "fault.good", "g", 1.0)
    eventually(lambda: len(service.notes()) == 4)
    own_redis.kill()
    eventually(lambda: counts(service)["end-g"] == 1 and "are kept" in service.log("worker"))
    own_redis.start()
    eventually(lambda: succeeded(own_broker, [*failing, ending]))
    assert set(counts(service).values()) == {1}, "each attempt once"
    assert own_broker.wire.backlog("default") == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_a_server_that_is_stopped_while_sends_and_fetches_are_under_way(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker, seconds: int
) -> None:
    """Case 02-D33: the clients gave up, and the server does what it finds in its sockets when it goes on."""
    lease = {"CALLBOARD_LEASE_SECONDS": "8" if seconds < 10 else "30"}
    service.start_worker("worker", **WORKER, **lease)
    sent = [send(own_broker, "fault.good", "long", seconds + 4.0)]
    sent += [send(own_broker, "fault.good", f"j{number}", 0.2) for number in range(20)]
    sent += [send(own_broker, "outage.fail_once", f"f{number}", 0.2) for number in range(3)]
    eventually(lambda: counts(service)["end-j3"] == 1)
    own_redis.freeze()
    frozen_at = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        given_up = list(pool.map(lambda number: _send_in_vain(own_broker, f"v{number}"), range(20)))
    eventually(lambda: time.monotonic() - frozen_at >= seconds, seconds + 5)
    own_redis.thaw()
    thawed_at = time.monotonic()
    eventually(lambda: service.is_ready("worker"))
    assert time.monotonic() - thawed_at < 5
    # What is told that it may be stored is, since the server had the command; the others had no connection.
    stored = [message for message, may_be_stored in given_up if may_be_stored]
    assert stored
    eventually(lambda: succeeded(own_broker, [*sent, *stored]), 60)
    never = [message for message, may_be_stored in given_up if not may_be_stored]
    assert all(own_broker.find_record(message.message_id) is None for message in never)
    assert set(counts(service).values()) == {1}, "no lease was lost, and so nothing ran twice"
    assert own_broker.wire.backlog("default") == 0


def _send_in_vain(broker: RedisBroker, word: str) -> tuple[Message[Any], bool]:
    message: Message[Any] = Message(
        queue_name="default", actor_name="fault.good", args=(word, 0.0), kwargs={}, options={}
    )
    with pytest.raises(BrokerUnavailable) as error:
        broker.send(message)
    return message, error.value.may_be_stored


def test_what_follows_a_job_is_sent_when_the_outage_is_over(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker
) -> None:
    service.start_worker("worker", **WORKER)
    step: Message[Any] = Message("default", "fault.good", ("step", 0.0), {}, {"pipe_ignore": True})
    first: Message[Any] = Message("default", "fault.good", ("first", 2.0), {}, {"pipe_target": step.asdict()})
    called: Message[Any] = Message("default", "fault.good", ("called", 2.0), {}, {"on_success": "fault.follows"})
    for message in (first, called):
        own_broker.send(message)
    eventually(lambda: {"start-first", "start-called"} <= set(counts(service)))
    own_redis.kill()
    eventually(lambda: {"end-first", "end-called"} <= set(counts(service)))
    time.sleep(1)
    own_redis.start()
    eventually(lambda: {"end-step", "follows"} <= set(counts(service)), 20)
    eventually(lambda: own_broker.wire.backlog("default") == 0)
    assert state_of(own_broker, first) == "succeeded"
    assert counts(service)["end-step"] == counts(service)["follows"] == 1


def test_more_threads_than_the_clients_own_limit_of_connections_send_at_once(
    own_broker: RedisBroker, own_redis: RedisServer
) -> None:
    """A worker of all queues has 94 threads, and some of its own; redis-py's pool ends at 100."""
    own_broker.declare_queue("default")
    own_redis.freeze()  # each send keeps its connection
    with ThreadPoolExecutor(120) as threads:
        sends = [threads.submit(send, own_broker, "fault.good", f"j{number}") for number in range(120)]
        time.sleep(0.5)
        own_redis.thaw()
        for each in sends:
            each.result()
    assert own_broker.wire.backlog("default") == 120
