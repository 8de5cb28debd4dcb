"""Redis goes away while work is under way: nothing is lost, and workers go on by themselves."""

import threading
import time
from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from service.errors import BrokerUnavailable
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually


@pytest.fixture
def broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """On a server of its own, as are the processes of the service."""
    service.environment["REDIS_URL"] = own_redis.url
    with broker_at(own_redis.url, monkeypatch) as broker:
        yield broker


@pytest.mark.timeout(180)
def test_a_server_killed_and_restarted_under_load_loses_nothing(
    service: Service, own_redis: RedisServer, broker: RedisBroker
) -> None:
    service.start_worker("worker", **LEASE)
    sent = [send(broker, "fault.good", f"j{number}", 0.02) for number in range(500)]
    failing = [send(broker, "fault.fail", f"f{number}") for number in range(4)]
    time.sleep(1.2)  # what `appendfsync everysec` may lose is on disk
    own_redis.kill()
    time.sleep(2)
    own_redis.start()
    back_at = time.monotonic()
    eventually(lambda: service.is_ready("worker"), 15)
    assert time.monotonic() - back_at < 5
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent), 60)
    eventually(lambda: all(state_of(broker, message) == "dead" for message in failing), 60)
    seen = counts(service)
    assert all(seen[f"end-j{number}"] >= 1 for number in range(500))
    assert broker.wire.backlog("default") == 0
    # What had ended when the server died, and was settled within its last second, may run again.
    assert sum(seen[f"end-j{number}"] for number in range(500)) <= 500 + 200


@pytest.mark.timeout(180)
def test_a_frozen_server_delays_work_and_loses_none(
    service: Service, own_redis: RedisServer, broker: RedisBroker
) -> None:
    service.environment["CALLBOARD_REDIS_TIMEOUT_SECONDS"] = "1.5"
    service.start_worker("worker", **{**LEASE, "CALLBOARD_LEASE_SECONDS": "10"})
    sent = [send(broker, "fault.good", f"j{number}", 0.02) for number in range(200)]
    own_redis.freeze()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable) as refused:
        broker.send(sent[0])
    assert time.monotonic() - started < 7
    assert refused.value.may_be_stored is True
    own_redis.thaw()
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent), 60)
    eventually(lambda: broker.wire.backlog("default") == 0)


@pytest.mark.timeout(120)
def test_clients_that_are_killed_again_and_again_come_back(
    service: Service, own_redis: RedisServer, broker: RedisBroker
) -> None:
    service.start_worker("worker", **LEASE)
    sent = [send(broker, "fault.good", f"a{number}", 0.02) for number in range(100)]
    with own_redis.client() as control:
        for _ in range(5):
            control.client_kill_filter(_type="normal", skipme=True)
            control.client_kill_filter(_type="pubsub", skipme=True)
            time.sleep(0.5)
    for number in range(20):
        try:
            sent.append(send(broker, "fault.good", f"b{number}", 0.02))
        except BrokerUnavailable:
            sent.append(send(broker, "fault.good", f"b{number}", 0.02))
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent), 20)


@pytest.mark.timeout(120)
def test_a_server_that_forgets_its_scripts_all_the_time_is_not_noticed(
    service: Service, own_redis: RedisServer, broker: RedisBroker
) -> None:
    service.start_worker("worker", **LEASE)
    stop = threading.Event()

    def flush() -> None:
        with own_redis.client() as control:
            while not stop.wait(0.05):
                control.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        sent = [send(broker, "fault.good", f"j{number}", 0.0) for number in range(500)]
        eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent), 60)
    finally:
        stop.set()
        flusher.join()
    assert set(counts(service).values()) == {1}
