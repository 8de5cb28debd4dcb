"""`POST /jobs/batch`: all jobs are checked before any is stored, and each is accounted for."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job, Unique, job
from service.state.database import engine_for
from service.state.history import History


@pytest.fixture
def client(broker: RedisBroker, database_url: str) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int) -> None: ...

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


def jobs_of(numbers: Any) -> dict[str, Any]:
    return {"jobs": [{"type": "count.up", "payload": {"n": number}} for number in numbers]}


def test_ten_thousand_jobs_are_stored_in_the_order_of_the_request(client: TestClient, broker: RedisBroker) -> None:
    answer = client.post("/jobs/batch", json=jobs_of(range(10_000)))
    assert answer.status_code == 202
    body = answer.json()
    assert set(body) == {"accepted", "job_ids"}
    assert body["accepted"] == len(set(body["job_ids"])) == broker.wire.backlog("default") == 10_000
    for number in (0, 1234, 9999):
        assert f'"n":{number}}}'.encode() in broker.client.hget(
            f"{{{broker.namespace}:default}}:messages", body["job_ids"][number]
        )
    assert client.get(f"/jobs/{body['job_ids'][17]}").json()["state"] == "pending"


def test_each_job_may_have_its_own_time_and_priority(client: TestClient) -> None:
    asked = jobs_of(range(3))
    asked["jobs"][1]["delay_seconds"] = 60
    asked["jobs"][2] |= {"run_at": "2020-01-01T00:00:00Z", "priority": 0}
    ids = client.post("/jobs/batch", json=asked).json()["job_ids"]
    assert [client.get(f"/jobs/{job_id}").json()["state"] for job_id in ids] == ["pending", "scheduled", "pending"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": {"n": "x"}}, "jobs.1.payload.n"),
        ({"payload": {"n": 1, "m": 2}}, "jobs.1.payload.m"),
        ({"type": "no.such"}, "jobs.1.type"),
        ({"priority": 10}, "jobs.1.priority"),
        ({"delay_seconds": -1}, "jobs.1.delay_seconds"),
        ({"run_at": "2020-01-01T00:00:00"}, "jobs.1.run_at"),
        ({"run_at": "9999-01-01T00:00:00Z"}, "jobs.1.body"),
        ({"delay_seconds": 1, "run_at": "2020-01-01T00:00:00Z"}, "jobs.1.body"),
        ({"colour": "red"}, "jobs.1.colour"),
    ],
)
def test_nothing_is_sent_where_one_job_is_wrong(
    client: TestClient, broker: RedisBroker, change: dict[str, Any], field: str
) -> None:
    asked = jobs_of(range(3))
    asked["jobs"][1] |= change
    answer = client.post("/jobs/batch", json=asked)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert broker.wire.backlog("default") == 0


@pytest.mark.parametrize("body", [{}, {"jobs": []}, {"jobs": {}}, {"jobs": [1]}, {"jobs": [{}], "more": 1}, [1]])
def test_a_body_of_another_shape_is_refused(client: TestClient, body: Any) -> None:
    assert client.post("/jobs/batch", json=body).status_code == 422


def test_more_than_ten_thousand_are_refused(client: TestClient, broker: RedisBroker) -> None:
    assert client.post("/jobs/batch", json=jobs_of(range(10_001))).status_code == 422
    assert broker.wire.backlog("default") == 0


def test_a_key_for_a_whole_batch_is_refused(client: TestClient, broker: RedisBroker) -> None:
    answer = client.post("/jobs/batch", json=jobs_of(range(2)), headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert broker.wire.backlog("default") == 0


def test_a_unique_job_that_is_there_is_refused_and_named_and_the_others_are_stored(
    client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="account.sync", queue="default", unique=Unique("{account}"))
    def sync(*, account: str) -> None: ...

    asked = {"jobs": [{"type": sync.actor_name, "payload": {"account": account}} for account in "aab"]}
    body = client.post("/jobs/batch", json=asked).json()
    first, refused, third = body["job_ids"]
    assert (body["accepted"], refused) == (2, None)
    assert first
    assert third
    assert [(each["index"], each["code"], each["job_id"]) for each in body["refused"]] == [(1, "job-exists", first)]
