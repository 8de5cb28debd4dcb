"""A server that answers, and refuses: senders are told so in time, workers go on by themselves, nothing runs twice."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from service.broker import RedisBroker
from service.errors import BrokerUnavailable
from service.middleware import chain
from service.settings import load_settings
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.proxy import Command, Proxy, script_of
from tests.servers import RedisServer, eventually, free_port

WORKER = {"CALLBOARD_LEASE_SECONDS": "10", "CALLBOARD_ACTORS": "fault_jobs,outages_jobs"}
#: The least that may be set.
TIMEOUT_SECONDS = 1.5

REFUSALS = [
    "READONLY You can't write against a read only replica.",
    "ERR READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
]
#: One for each way in which a worker may take them: errors of the command, of the connection, and of the script cache.
MET_BY_A_WORKER = [*REFUSALS[:6], "NOAUTH Authentication required.", "NOSCRIPT No matching script."]


def is_script(command: Command) -> bool:
    return script_of(command) is not None


def counts(service: Service) -> Counter[str]:
    return Counter(line.split()[0] for line in service.notes())


def succeeded(broker: RedisBroker, messages: list) -> bool:
    return all(state_of(broker, message) == "succeeded" for message in messages)


def refused(broker: RedisBroker, *, may_be_stored: bool, within_seconds: float = TIMEOUT_SECONDS) -> None:
    """Send, and be told in time that it failed."""
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable) as error:
        send(broker, "fault.good", "refused")
    assert time.monotonic() - started < within_seconds + 1, "a second for a loaded machine"
    assert error.value.may_be_stored is may_be_stored


@pytest.fixture
def own_broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """On the server that is treated badly, as are the processes of the service."""
    variables = {"REDIS_URL": own_redis.url, "CALLBOARD_REDIS_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    service.environment |= variables
    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    yield broker
    broker.close()


@pytest.mark.parametrize("error", REFUSALS)
def test_a_send_that_the_server_refuses_is_not_stored(
    proxy: Proxy, broker: RedisBroker, sender: RedisBroker, error: str
) -> None:
    for _ in range(2):  # on a new connection and on one that was in use
        with proxy.answering(error, is_script):
            refused(sender, may_be_stored=False)
        send(sender, "fault.good", "taken")
    assert broker.wire.backlog("default") == 2


@pytest.mark.timeout(180)
def test_a_worker_goes_on_after_every_kind_of_error_reply(service: Service, proxy: Proxy, broker: RedisBroker) -> None:
    """Cases 02-D30 and 02-D31."""
    service.start_worker("worker", **WORKER)
    for number, error in enumerate(MET_BY_A_WORKER):
        running = send(broker, "fault.good", f"running{number}", 0.5)
        failing = send(broker, "outage.fail_once", f"failing{number}", 0.5)
        eventually(lambda number=number: counts(service)[f"attempt-1-failing{number}"] == 1)
        with proxy.answering(error, is_script) as rule:
            waiting = [send(broker, "fault.good", f"waiting{number}-{each}", 0.01) for each in range(10)]
            eventually(lambda rule=rule: rule.met >= 3)
            eventually(lambda: not service.is_ready("worker"))
        back_at = time.monotonic()
        eventually(lambda: service.is_ready("worker"))
        eventually(lambda waiting=waiting: succeeded(broker, waiting))
        assert time.monotonic() - back_at < 5
        eventually(lambda running=running, failing=failing: succeeded(broker, [running, failing]))
    assert broker.wire.backlog("default") == 0
    assert set(counts(service).values()) == {1}, "nothing ran twice"


def test_a_server_that_forgets_a_script_before_each_call_is_not_noticed(
    service: Service, proxy: Proxy, broker: RedisBroker, sender: RedisBroker
) -> None:
    """Case 02-D31."""
    service.start_worker("worker", **WORKER)
    with proxy.answering("NOSCRIPT No matching script.", lambda command: command[0] == b"EVALSHA") as rule:
        sent = [send(sender, "fault.good", f"j{number}", 0.0) for number in range(20)]
        eventually(lambda: succeeded(broker, sent))
        assert rule.met > 20
    assert set(counts(service).values()) == {1}


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    server.freeze()
    yield
    server.thaw()


@contextmanager
def replica(server: RedisServer) -> Iterator[None]:
    """Of a primary that is not there."""
    with server.client() as control:
        control.replicaof("127.0.0.1", free_port())
        yield
        control.replicaof("NO", "ONE")


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    with server.client() as control:
        control.config_set("maxmemory", 1)
        yield
        control.config_set("maxmemory", 0)


@contextmanager
def without_free_connections(server: RedisServer) -> Iterator[None]:
    with server.client() as control:
        control.config_set("maxclients", 1)
        yield
        control.config_set("maxclients", 1000)


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """With a script that loops until it is killed."""
    with server.client() as control:
        control.config_set("busy-reply-threshold", 100)
        looping = threading.Thread(target=_loop, args=(server,))
        looping.start()
        eventually(lambda: _is_busy(control))
        yield
        control.script_kill()
        looping.join()


def _loop(server: RedisServer) -> None:
    with server.client() as client, pytest.raises(redis.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(control: redis.Redis) -> bool:
    try:
        control.ping()
    except redis.RedisError as error:
        return "BUSY" in str(error)
    return False


def test_a_worker_goes_on_when_a_long_script_of_somebody_else_ends(
    service: Service, own_redis: RedisServer, own_broker: RedisBroker
) -> None:
    service.start_worker("worker", **WORKER)
    sent = [send(own_broker, "fault.good", f"j{number}", 0.1) for number in range(20)]
    sent += [send(own_broker, "outage.fail_once", "f", 0.1)]
    eventually(lambda: counts(service)["start-j4"] == 1)
    with busy(own_redis):
        eventually(lambda: not service.is_ready("worker") and "are kept" in service.log("worker"))
    back_at = time.monotonic()
    eventually(lambda: service.is_ready("worker"))
    assert time.monotonic() - back_at < 5
    eventually(lambda: succeeded(own_broker, sent))
    assert set(counts(service).values()) == {1}


Trouble = Callable[[RedisServer], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("trouble", "may_be_stored"),
    [(killed, True), (frozen, True), (replica, False), (full, False), (busy, False)],
)
def test_a_send_on_an_open_connection_fails_in_time_and_says_what_became_of_it(
    own_broker: RedisBroker, own_redis: RedisServer, trouble: Trouble, may_be_stored: bool
) -> None:
    send(own_broker, "fault.good", "before")
    with trouble(own_redis):
        refused(own_broker, may_be_stored=may_be_stored)
    send(own_broker, "fault.good", "after")
    # A frozen server finds the command when it goes on: that is what may_be_stored says.
    eventually(lambda: own_broker.wire.backlog("default") == (3 if trouble is frozen else 2))


@pytest.mark.parametrize("trouble", [killed, frozen, replica, full, busy, without_free_connections])
def test_a_send_that_finds_no_connection_fails_in_time_and_has_stored_nothing(
    own_broker: RedisBroker, own_redis: RedisServer, trouble: Trouble
) -> None:
    with trouble(own_redis):
        refused(own_broker, may_be_stored=False)
    send(own_broker, "fault.good", "after")
    assert own_broker.wire.backlog("default") == 1
