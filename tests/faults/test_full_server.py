"""Redis is full: sends are refused and say so, and what is under way comes to its end, so that it empties."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest

from service.api.app import build_app
from service.broker import RedisBroker
from service.broker.server_check import problems_of
from service.errors import BrokerUnavailable
from service.job import Job
from service.middleware import chain
from service.settings import load_settings
from service.state.database import engine_for
from service.state.history import History
from tests.api.conftest import Api, serve  # noqa: F401
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually

POLICIES = ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"]


@pytest.fixture
def broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """On the server that is filled, as are the processes of the service."""
    service.environment |= {"REDIS_URL": own_redis.url, "CALLBOARD_ACTORS": "fault_jobs,outages_jobs"}
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    yield broker
    broker.close()


@contextmanager
def filled(server: RedisServer) -> Iterator[None]:
    """With the keys of somebody else's cache."""
    with server.client() as control:
        for number in range(40):
            control.set(f"cache:{number}", "x" * 100_000)
        # Above the limit by more than the jobs that end meanwhile give back.
        control.config_set("maxmemory", control.info("memory")["used_memory"] - 2_000_000)
        yield
        control.delete(*control.keys("cache:*"))


def test_running_jobs_end_once_on_a_full_server_and_sends_are_refused(
    service: Service, own_redis: RedisServer, broker: RedisBroker
) -> None:
    """Case 02-D49."""
    service.start_worker()
    sent = [send(broker, "fault.good", f"j{number}", 0.2) for number in range(40)]
    sent += [send(broker, "outage.fail_once", f"f{number}", 0.1) for number in range(10)]
    eventually(lambda: len(service.notes()) >= 4)
    with filled(own_redis):
        ended = sum(state_of(broker, message) == "succeeded" for message in sent)
        assert ended < 50, "there is work left to do"
        with pytest.raises(BrokerUnavailable, match="maxmemory") as refused:
            send(broker, "fault.good", "refused")
        assert refused.value.may_be_stored is False
        eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent), 40)
    runs = Counter(line.split()[0] for line in service.notes())
    assert set(runs.values()) == {1}
    assert broker.wire.backlog("default") == 0
    after = send(broker, "fault.good", "after")
    eventually(lambda: state_of(broker, after) == "succeeded")


def test_the_api_answers_that_the_server_is_full(
    own_redis: RedisServer,
    broker: RedisBroker,
    serve: Callable[[Any], Api],  # noqa: F811
) -> None:
    """Case 02-D49."""

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count_up(*, n: int) -> None: ...

    no_database = History(engine_for("postgresql://127.0.0.1:1/none"), broker)
    api = serve(build_app(broker, no_database))
    with filled(own_redis):
        answer = api.send()
        assert (answer.status, answer.content_type) == (503, "application/problem+json")
        assert answer.body["type"] == "urn:callboard:problem:broker-unavailable"
        assert answer.body["may_be_stored"] is False
        assert "maxmemory" in answer.body["detail"]
        assert "maxmemory" in api.get("/readyz").body["checks"]["redis"]
    assert api.send().status == 202


@pytest.mark.parametrize("policy", [*POLICIES, "volatile-ttl"])
def test_every_policy_that_evicts_keys_is_a_problem(own_redis: RedisServer, policy: str) -> None:
    """Case 02-D49. What a worker makes of a problem is in the tests of workers."""
    with own_redis.client() as control:
        assert problems_of(control, "callboard") == []
        control.config_set("maxmemory-policy", policy)
        [problem] = problems_of(control, "callboard")
        assert policy in problem
        assert "noeviction" in problem
