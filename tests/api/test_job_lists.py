"""`GET /jobs`: every job that a filter takes, once, as it is now."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.worker import Worker
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job
from service.state.history import History
from tests.servers import eventually


@pytest.fixture
def client(broker: RedisBroker, engine: Engine) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job, max_retries=0)
    def count(*, n: int, word: str = "") -> int:
        if n < 0:
            raise ValueError(n)
        return n

    @dramatiq.actor(broker=broker, actor_name="mail", queue_name="email", actor_class=Job)
    def mail(*, to: str) -> None: ...

    with TestClient(build_app(broker, History(engine, broker))) as client:
        yield client


def send(client: TestClient, n: int = 1, **more: Any) -> str:
    payload = {"n": n} | more.pop("payload", {})
    return str(client.post("/jobs", json={"type": "count.up", "payload": payload} | more).json()["job_id"])


def listed(client: TestClient, **query: Any) -> list[str]:
    answer = client.get("/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["job_id"] for job in answer.json()["jobs"]]


def test_pages_skip_and_repeat_nothing_while_jobs_arrive(client: TestClient, project: Callable[[], None]) -> None:
    there = [send(client, n) for n in range(23)]
    project()
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get("/jobs", params={"limit": 5} | ({"cursor": cursor} if cursor else {})).json()
        found += [job["job_id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
        send(client)
        project()
    assert sorted(found) == sorted(there)
    assert len(listed(client, limit=200)) > len(there)


def test_a_filter_takes_what_fits_all_of_it(client: TestClient, project: Callable[[], None]) -> None:
    plain = send(client)
    word = send(client, 2, payload={"word": "häßlich"})
    tenant = send(client, 3, tenant="acme")
    later = send(client, 4, delay_seconds=3600)
    mail = client.post("/jobs", json={"type": "mail", "payload": {"to": "ada"}}).json()["job_id"]
    project()
    assert set(listed(client)) == {plain, word, tenant, later, mail}
    assert listed(client, payload='{"word": "häßlich"}') == [word]
    assert listed(client, payload='{"word": "häßlich", "n": 3}') == []
    assert listed(client, tenant="acme") == [tenant]
    assert listed(client, state="scheduled") == [later]
    assert set(listed(client, state=["scheduled", "pending"])) == {plain, word, tenant, later, mail}
    assert set(listed(client, status="pending", queue="default")) == {plain, word, tenant, later}
    assert listed(client, type="mail") == [mail]
    assert listed(client, type="mail", queue="default") == []
    now = datetime.now(UTC)
    assert listed(client, created_before=(now - timedelta(hours=1)).isoformat()) == []
    assert len(listed(client, created_from=(now - timedelta(hours=1)).isoformat())) == 5


def test_what_is_listed_is_as_it_is_now_and_not_as_it_was_stored(
    client: TestClient, project: Callable[[], None], start_worker: Callable[..., Worker]
) -> None:
    good, bad = send(client, 1), send(client, -1)
    project()
    assert set(listed(client, state="pending")) == {good, bad}
    start_worker()
    eventually(lambda: client.get(f"/jobs/{bad}").json()["is_terminal"])
    eventually(lambda: client.get(f"/jobs/{good}").json()["is_terminal"])
    # Nothing more has been stored.
    assert {job["job_id"]: job["state"] for job in client.get("/jobs").json()["jobs"]} == {
        good: "succeeded",
        bad: "dead",
    }
    assert listed(client, state="pending") == []
    project()
    [job] = client.get("/jobs", params={"state": "dead"}).json()["jobs"]
    assert (job["job_id"], job["reason"], job["error"]["type"]) == (bad, "failed", "ValueError")
    assert listed(client, state="succeeded") == [good]
    assert set(listed(client, ended_from="2020-01-01T00:00:00Z")) == {good, bad}
    assert "result" not in client.get("/jobs", params={"state": "succeeded"}).json()["jobs"][0]


def test_they_are_counted_where_that_is_asked_for(client: TestClient, project: Callable[[], None]) -> None:
    for n in range(3):
        send(client, n)
    project()
    page = client.get("/jobs", params={"limit": 1, "count": "true"}).json()
    assert page["count"] == {"number": 3, "is_exact": True}
    assert "count" not in client.get("/jobs").json()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "asleep"}, "query.state.0"),
        ({"colour": "red"}, "query.colour"),
        ({"payload": "x"}, "query.payload"),
        ({"payload": "[1]"}, "query.payload"),
        ({"payload": '{"n": NaN}'}, "payload"),
        ({"payload": '{"n": [1e400]}'}, "payload"),
        ({"limit": "201"}, "query.limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": f"2026-01-01T00:00:00_{uuid.UUID(int=1)}"}, "cursor"),
        ({"created_from": "2026-01-01T00:00:00"}, "query.created_from"),
        ({"queue": "a\x00b"}, "queue"),
        ({"status": "running", "state": "dead"}, "status"),
    ],
)
def test_a_filter_that_is_none_is_refused(client: TestClient, query: dict[str, str], field: str) -> None:
    answer = client.get("/jobs", params=query)
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
