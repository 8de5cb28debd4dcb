"""Health, readiness and metrics: what they say of the queues, and that they answer in time whatever is down."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from prometheus_client.parser import text_string_to_metric_families

from service.api.app import build_app
from service.broker import RedisBroker
from service.broker.depths import depths
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure
from service.broker.settlement import settlement_of
from service.job import Job
from service.middleware import chain
from service.queues import QUEUES
from service.settings import Settings, get_settings
from service.state.database import engine_for
from service.state.history import History
from tests.api.conftest import Api, at_once
from tests.commands import client_commands
from tests.servers import RedisServer, eventually, frozen_postgres

HEALTH = "/api/workers/health"
BOUND_SECONDS = 5.5


@pytest.fixture
def settings(environment: dict[str, str], own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    monkeypatch.setenv("CALLBOARD_REDIS_TIMEOUT_SECONDS", "2")
    monkeypatch.setenv("CALLBOARD_QUEUE_DEPTH_THRESHOLD", "3")
    monkeypatch.setenv("CALLBOARD_QUEUE_DEPTH_THRESHOLDS", "email=5, ai=1")
    get_settings.cache_clear()
    return get_settings()


@pytest.fixture
def broker(settings: Settings) -> Iterator[RedisBroker]:
    broker = RedisBroker(lambda: settings, chain())

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int) -> None: ...

    yield broker
    broker.close()


@pytest.fixture
def api(broker: RedisBroker, database_url: str, serve: Callable[[Any], Api]) -> Api:
    return serve(build_app(broker, History(engine_for(database_url), broker)))


def send(broker: RedisBroker, queue: str = "default", count: int = 1, delay_ms: int | None = None) -> None:
    for _ in range(count):
        message: Message[Any] = Message(queue, "count.up", (), {"n": 1}, {})
        broker.send(message, delay_ms=delay_ms)


def figures(api: Api) -> dict[tuple[str, ...], float]:
    """The samples of `/metrics`, by name and values of labels."""
    answer = api.get("/metrics")
    assert (answer.status, answer.content_type.partition(";")[0]) == (200, "text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.body)
        for sample in family.samples
    }


def test_workers_are_healthy_while_no_queue_is_over_its_threshold(api: Api, broker: RedisBroker) -> None:
    send(broker, "default", 3)
    send(broker, "email", 5)
    answer = api.get(HEALTH)
    assert answer.status == 200
    assert (answer.body["status"], answer.body["queue_depth"], answer.body["dead_letter_count"]) == ("healthy", 8, 0)
    assert answer.body["max_jobs"] == sum(policy.concurrency * policy.processes for policy in QUEUES.values())
    assert list(answer.body["queues"]) == list(QUEUES)
    assert answer.body["queues"]["email"]["threshold"] == 5
    send(broker, "default")
    degraded = api.get(HEALTH)
    assert (degraded.status, degraded.body["status"]) == (200, "degraded")
    queues = degraded.body["queues"]
    assert [name for name, queue in queues.items() if queue["status"] == "degraded"] == ["default"]
    assert (queues["default"]["depth"], queues["default"]["threshold"]) == (4, 3)


def test_the_threshold_of_a_single_queue_is_its_own(api: Api, broker: RedisBroker) -> None:
    send(broker, "ai", 2)
    body = api.get(HEALTH).body
    assert (body["status"], body["queues"]["ai"]["status"]) == ("degraded", "degraded")


def test_each_kind_of_job_is_counted_where_it_is(api: Api, broker: RedisBroker) -> None:
    send(broker, count=3)
    [running] = broker.fetch("default", 1)[0]
    [dying] = broker.fetch("default", 1)[0]
    dying.outcome = Dead(Failure("ValueError", "no", ""))
    broker.settle("default", [settlement_of(dying)])
    send(broker, count=2, delay_ms=3_600_000)
    send(broker, delay_ms=1)
    eventually(lambda: depths(broker)["default"].depth == 2)  # no worker is there to move what is due
    queue = api.get(HEALTH).body["queues"]["default"]
    assert (queue["depth"], queue["running"], queue["scheduled"], queue["dead_letters"]) == (2, 1, 2, 1)
    assert api.get(HEALTH).body["dead_letter_count"] == 1
    assert running.message_id


def test_the_age_is_that_of_the_one_that_has_waited_longest(broker: RedisBroker) -> None:
    assert depths(broker)["default"].oldest_age_seconds is None
    old: Message[Any] = Message("default", "count.up", (), {"n": 1}, {"priority": 9})
    broker.send(old)
    # As if it had been sent a minute before.
    keys = Keys(broker.namespace, "default")
    stored = broker.client.hget(keys.messages, old.message_id)
    score, created, rest = stored.split(b" ", 2)
    broker.client.hset(keys.messages, old.message_id, b" ".join([score, b"%d" % (int(created) - 60_000), rest]))
    send(broker)
    age = depths(broker)["default"].oldest_age_seconds
    assert age is not None
    assert 60 <= age < 75


def test_all_queues_are_counted_in_one_round_trip(broker: RedisBroker, own_redis: RedisServer) -> None:
    depths(broker)
    with own_redis.client() as client:
        client.script_flush()
    with client_commands(own_redis) as commands:
        depths(broker)
    assert commands["EVALSHA"] == len(QUEUES)
    assert commands.all - commands["EVALSHA"] == 1, "the script itself, with them"


def test_a_foreign_entry_does_not_hide_the_depth(broker: RedisBroker) -> None:
    keys = Keys(broker.namespace, "default")
    broker.client.zadd(keys.ready, {"foreign": 0, str(uuid.uuid4()): 1})
    broker.client.hset(keys.messages, "foreign", b"\xff\x00 nothing of ours")
    assert depths(broker)["default"].depth == 2


@pytest.mark.parametrize("path", ["/ready", "/readyz"])
def test_readiness_names_each_dependency_and_the_depth(api: Api, broker: RedisBroker, path: str) -> None:
    send(broker, "email", 2)
    answer = api.get(path)
    assert (answer.status, answer.body["status"], answer.body["queue_depth"]) == (200, "ready", 2)
    assert answer.body["checks"] == {"redis": "ok", "postgresql": "ok"}


def test_all_answer_in_time_while_redis_is_frozen(api: Api, broker: RedisBroker, own_redis: RedisServer) -> None:
    send(broker, count=2)
    before = api.get(HEALTH).body
    own_redis.freeze()
    try:
        paths = [HEALTH, "/ready", "/metrics", "/healthz"] * 5
        answers = at_once(*[lambda path=path: api.get(path) for path in paths])
    finally:
        own_redis.thaw()
    assert max(answer.seconds for answer in answers) < BOUND_SECONDS
    by_path = dict(zip(paths, answers, strict=True))
    assert {path: answer.status for path, answer in by_path.items()} == {
        HEALTH: 503,
        "/ready": 503,
        "/metrics": 200,
        "/healthz": 200,
    }
    health = by_path[HEALTH].body
    assert (health["status"], health["queue_depth"], health["as_of"]) == ("degraded", 2, before["as_of"])
    assert "Redis at" in health["reason"] or "no answer" in health["reason"]
    assert by_path["/ready"].body["queue_depth"] is None
    assert "callboard_redis_up 0.0" in by_path["/metrics"].body
    assert "callboard_queue_depth" not in by_path["/metrics"].body
    eventually(lambda: api.get(HEALTH).status == 200)


def test_nothing_is_known_of_a_redis_that_was_never_there(api: Api, own_redis: RedisServer) -> None:
    own_redis.kill()
    answer = api.get(HEALTH)
    assert (answer.status, answer.body["status"], answer.body["queue_depth"]) == (503, "degraded", None)
    assert api.get("/metrics").status == 200


def test_a_frozen_database_is_told_in_time_and_changes_nothing_of_the_queues(
    api: Api, broker: RedisBroker, postgres_url: str
) -> None:
    send(broker)
    with frozen_postgres(postgres_url):
        ready, health = at_once(lambda: api.get("/ready"), lambda: api.get(HEALTH))
    assert (ready.status, ready.body["queue_depth"], ready.body["checks"]["redis"]) == (200, 1, "ok")
    assert ready.body["checks"]["postgresql"] != "ok"
    assert (health.status, health.body["queue_depth"]) == (200, 1)
    assert max(ready.seconds, health.seconds) < BOUND_SECONDS


def test_metrics_hold_the_queues_and_requests_by_route(api: Api, broker: RedisBroker) -> None:
    send(broker, "email", 3)
    assert api.send().status == 202
    secret = f"secret-{uuid.uuid4()}"
    for path in (f"/jobs/{secret}", f"/jobs/{uuid.uuid4()}", f"/{secret}", f"/api/task-queue/{secret}"):
        assert api.get(path).status == 404
    assert api.ask("TRACE", "/jobs").status == 405
    found = figures(api)
    assert found["callboard_redis_up",] == 1
    assert (found["callboard_queue_depth", "email"], found["callboard_queue_depth", "default"]) == (3, 1)
    assert {key[1] for key in found if key[0] == "callboard_queue_dead_letters"} == set(QUEUES)
    total = "callboard_http_requests_total"
    assert found[total, "POST", "/jobs", "202"] == 1
    assert found[total, "GET", "/jobs/{job_id}", "404"] == 2
    assert found[total, "GET", "/api/task-queue/{task_id}", "404"] == 1
    assert found[total, "GET", "none", "404"] == 1
    assert found[total, "other", "none", "405"] == 1
    assert found["callboard_http_request_duration_seconds_count", "POST", "/jobs"] == 1
    assert not [key for key in found if secret in "".join(key)]


def test_probes_are_cheap(api: Api, broker: RedisBroker) -> None:
    send(broker, count=200)
    api.get(HEALTH)
    started = time.perf_counter()
    for _ in range(20):
        assert api.get(HEALTH).status == 200
    assert (time.perf_counter() - started) / 20 < 0.25
