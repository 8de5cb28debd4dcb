"""A server that hangs, is full or takes no writes: each request is answered in time, and nothing else waits for it."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
import redis
from sqlalchemy import insert

from service.api.app import build_app
from service.broker import RedisBroker
from service.errors import BrokerUnavailable
from service.job import Job
from service.middleware import chain
from service.settings import Settings, get_settings
from service.state.database import engine_for
from service.state.history import History
from service.state.snapshot import Snapshot
from service.state.tables import jobs
from tests.api.conftest import Answer, Api, at_once
from tests.servers import RedisServer, frozen_postgres

BOUND_SECONDS = 5.5
REDIS_TIMEOUT_SECONDS = 2.0
PROBLEM = "application/problem+json"


@pytest.fixture
def settings(environment: dict[str, str], own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    monkeypatch.setenv("CALLBOARD_REDIS_TIMEOUT_SECONDS", str(REDIS_TIMEOUT_SECONDS))
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
def history(broker: RedisBroker, database_url: str) -> History:
    return History(engine_for(database_url), broker)


@pytest.fixture
def api(broker: RedisBroker, history: History, serve: Callable[[Any], Api]) -> Api:
    api = serve(build_app(broker, history))
    assert api.get("/readyz").status == 200
    return api


def store(database_url: str, **changes: Any) -> str:
    """Write a row as the projector would, and return the job's id."""
    job_id = uuid.uuid4()
    now = {"at": "1700000000000", "created_at": "1700000000000"}
    fields = {"job_id": str(job_id), "seq": "2", "type": "count.up", "queue": "default", **now, **changes}
    snapshot = Snapshot.from_event(fields)
    row = {column.name: getattr(snapshot, column.name, None) for column in jobs.c}
    row["last_sequence"] = snapshot.sequence
    with engine_for(database_url).begin() as connection:
        connection.execute(insert(jobs).values(row))
    return str(job_id)


def slowest(answers: list[Answer]) -> float:
    return max(answer.seconds for answer in answers)


def test_a_frozen_database_costs_a_read_seconds_and_a_send_nothing(api: Api, database_url: str) -> None:
    live = api.send().body["poll_url"]
    assert api.get(live).status == 200  # so that a connection is in the pool
    with frozen_postgres(database_url):
        unknown = [lambda: api.get(f"/jobs/{uuid.uuid4()}")] * 60
        sends: list[Callable[[], Answer]] = [api.send] * 60
        answers = at_once(*unknown, *sends, *[lambda: api.get(live)] * 20, lambda: api.get("/readyz"))
        reads, sent, alive, ready = answers[:60], answers[60:120], answers[120:140], answers[140]
        assert {(answer.status, answer.content_type) for answer in reads} == {(503, PROBLEM)}
        assert {answer.body["type"] for answer in reads} == {"urn:callboard:problem:history-unavailable"}
        assert {answer.status for answer in sent} == {202}
        assert {answer.status for answer in alive} == {200}, "Redis knows it"
        assert slowest(reads + alive) < BOUND_SECONDS
        assert slowest(sent) < 2
        assert ready.status == 200
        assert "did not answer" in ready.body["checks"]["postgresql"] or "time" in ready.body["checks"]["postgresql"]
        assert ready.seconds < BOUND_SECONDS

        # From here on one request a second finds out whether it answers again, and the others need not wait.
        later = [api.get(live) for _ in range(20)]
        assert {answer.status for answer in later} == {200}
        assert sum(answer.seconds for answer in later) < BOUND_SECONDS
    time.sleep(1.1)
    assert api.get(f"/jobs/{uuid.uuid4()}").status in (404, 503)
    time.sleep(1.1)
    assert api.get(f"/jobs/{uuid.uuid4()}").status == 404, "it answers again"


def test_a_database_that_hangs_before_the_first_connection_is_given_up_too(api: Api, database_url: str) -> None:
    with frozen_postgres(database_url):
        answer = api.get(f"/jobs/{uuid.uuid4()}")
        assert (answer.status, answer.content_type) == (503, PROBLEM)
        assert answer.seconds < BOUND_SECONDS


def test_a_frozen_redis_holds_each_request_for_one_time_out_and_health_for_less(
    api: Api, own_redis: RedisServer
) -> None:
    own_redis.freeze()
    try:
        sends: list[Callable[[], Answer]] = [api.send] * 100
        reads = [lambda: api.get(f"/jobs/{uuid.uuid4()}")] * 60
        health = [lambda: api.get("/healthz")] * 5 + [lambda: api.get("/readyz")] * 5
        wrong = [lambda: api.ask("POST", "/jobs", json={"type": "X"})] * 5
        answers = at_once(*sends, *reads, *wrong, *health)
        assert {(answer.status, answer.content_type) for answer in answers[:160]} == {(503, PROBLEM)}
        assert {answer.body["type"] for answer in answers[:160]} == {"urn:callboard:problem:broker-unavailable"}
        assert slowest(answers[:160]) < REDIS_TIMEOUT_SECONDS + 2
        stored = [answer.body["may_be_stored"] for answer in answers[:100]]
        assert False in stored, "most were never sent"
        assert [answer.status for answer in answers[160:]] == [422] * 5 + [200] * 5 + [503] * 5
        assert slowest(answers[160:170]) < 2, "these need no Redis"
        assert slowest(answers[170:]) < REDIS_TIMEOUT_SECONDS + 2
        assert sum(api.send().seconds for _ in range(10)) < 2 * REDIS_TIMEOUT_SECONDS
    finally:
        own_redis.thaw()
    time.sleep(1.1)
    api.send()
    assert api.send().status == 202, "it answers again"


def test_a_finished_job_is_read_without_redis(api: Api, own_redis: RedisServer, database_url: str) -> None:
    done = store(database_url, state="succeeded", result='{"n": 2}')
    own_redis.freeze()
    try:
        answer = api.get(f"/jobs/{done}")
        assert (answer.status, answer.body["status"]) == (200, "succeeded")
        assert answer.seconds < 1
    finally:
        own_redis.thaw()


def test_a_row_that_is_not_final_is_not_shown_where_redis_may_know_of_the_end(
    api: Api, history: History, own_redis: RedisServer, database_url: str
) -> None:
    running = store(database_url, state="running")
    assert api.get(f"/jobs/{running}").body["status"] == "running"
    own_redis.kill()
    answer = api.get(f"/jobs/{running}")
    assert (answer.status, answer.body["type"]) == (503, "urn:callboard:problem:broker-unavailable")
    with pytest.raises(BrokerUnavailable):
        history.find(uuid.UUID(running))


@pytest.mark.parametrize("trouble", ["full", "replica"])
def test_a_redis_that_takes_no_writes_is_not_ready(api: Api, own_redis: RedisServer, trouble: str) -> None:
    with own_redis.client() as client:
        if trouble == "full":
            client.config_set("maxmemory", 1)
        else:
            client.replicaof("127.0.0.1", "1")
        assert client.ping()
        assert api.send().status == 503
        ready = api.get("/readyz")
        assert ready.status == 503
        assert ("maxmemory" if trouble == "full" else "read only") in ready.body["checks"]["redis"]
        if trouble == "full":
            client.config_set("maxmemory", 0)
        else:
            client.replicaof("NO", "ONE")
        assert api.get("/readyz").status == 200
        left = [key for key in client.keys("*readyz*") if client.ttl(key) <= 0]
        assert left == []


def test_probes_that_come_together_share_one_check(api: Api, own_redis: RedisServer) -> None:
    own_redis.freeze()
    try:
        with ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(lambda _: api.get("/readyz"), range(30)))
        with redis.Redis(port=own_redis.port, socket_timeout=0.2) as client, pytest.raises(redis.RedisError):
            client.ping()
        assert {answer.status for answer in answers} == {503}
        assert slowest(answers) < REDIS_TIMEOUT_SECONDS + 1.5
    finally:
        own_redis.thaw()


def test_a_batch_that_redis_takes_in_part_says_which_jobs_are_stored(
    api: Api, broker: RedisBroker, own_redis: RedisServer
) -> None:
    batch = {"jobs": [{"type": "count.up", "payload": {"n": number}} for number in range(10_000)]}
    assert api.ask("POST", "/jobs/batch", json=batch).status == 202  # so that all that it needs is there
    used = own_redis.client().info("memory")["used_memory"]
    own_redis.client().config_set("maxmemory", used + 1_500_000)
    before = broker.wire.backlog("default")
    answer = api.ask("POST", "/jobs/batch", json=batch)
    own_redis.client().config_set("maxmemory", 0)
    assert (answer.status, answer.content_type) == (503, PROBLEM)
    assert answer.body["type"] == "urn:callboard:problem:batch-unfinished"
    stored = answer.body["stored"]
    assert 0 < len(stored) < 10_000
    assert len(set(stored)) == len(stored) == broker.wire.backlog("default") - before
    assert api.get(f"/jobs/{stored[-1]}").status == 200
    assert not answer.body["uncertain"]


def test_a_batch_for_a_server_that_is_away_stores_nothing(api: Api, own_redis: RedisServer) -> None:
    own_redis.kill()
    answer = api.ask("POST", "/jobs/batch", json={"jobs": [{"type": "count.up", "payload": {"n": 1}}] * 3})
    assert answer.status == 503
    assert answer.body["type"] == "urn:callboard:problem:broker-unavailable"
    assert answer.body["may_be_stored"] is False
