"""Cancel, retry and PATCH over HTTP: what is answered, in which state of the job."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.worker import Worker
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job
from service.state.database import engine_for
from service.state.history import History
from service.state.projector import Projector
from tests.servers import eventually

StartWorker = Callable[..., Worker]
UNKNOWN = "5a0c1d1e-0b55-4d4e-8f5c-0e6b1c9a7d10"


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def client(broker: RedisBroker, database_url: str, gate: threading.Event) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="job.run", actor_class=Job, max_retries=0)
    def run(*, fails: bool = False, waits: bool = False) -> None:
        while waits and not gate.is_set():
            time.sleep(0.01)
        if fails and not gate.is_set():
            raise ValueError("no")

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


@pytest.fixture
def store(broker: RedisBroker, database_url: str) -> Callable[[], None]:
    """Store what has happened in the database, as the projector does, and forget it in Redis."""
    engine = engine_for(database_url)

    def store() -> None:
        with engine.connect() as connection:
            while Projector(broker, engine).project_batch(connection):
                pass

    return store


def sent(client: TestClient, **payload: Any) -> str:
    return client.post("/jobs", json={"type": "job.run", "payload": payload}).json()["job_id"]


def state_of(client: TestClient, job_id: str) -> str:
    return client.get(f"/jobs/{job_id}").json()["state"]


def test_a_waiting_job_is_cancelled_at_once_and_says_why(client: TestClient, store: Callable[[], None]) -> None:
    job_id = sent(client)
    answer = client.post(f"/jobs/{job_id}/cancel", json={"why": "sent by mistake"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"job_id": job_id, "state": "cancelled", "status": "failed"},
    )
    job = client.get(f"/jobs/{job_id}").json()
    assert (job["state"], job["status"], job["is_terminal"]) == ("cancelled", "failed", True)
    assert job["error"] == {"type": "Cancelled", "message": "Cancelled by anybody: sent by mistake"}
    assert job["started_at"] is None
    again = client.post(f"/jobs/{job_id}/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    store()
    again = client.post(f"/jobs/{job_id}/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled"), "also where only the database knows it"
    assert client.get(f"/jobs/{job_id}").json() == job


def test_a_running_job_is_told_to_stop(
    client: TestClient, start_worker: StartWorker, store: Callable[[], None]
) -> None:
    job_id = sent(client, waits=True)
    start_worker()
    eventually(lambda: state_of(client, job_id) == "running")
    answer = client.post(f"/jobs/{job_id}/cancel")
    expected = {"job_id": job_id, "state": "running", "status": "running", "cancel_requested": True}
    assert (answer.status_code, answer.json()) == (202, expected)
    shown = client.get(f"/jobs/{job_id}").json()
    assert shown.get("cancel_requested", False) is (shown["state"] == "running"), "whoever asks sees that it is to end"
    eventually(lambda: state_of(client, job_id) == "cancelled", 2)
    store()
    assert state_of(client, job_id) == "cancelled"


@pytest.mark.parametrize("is_stored", [True, False], ids=["in the database", "in Redis"])
@pytest.mark.parametrize("state", ["succeeded", "dead"])
def test_what_has_ended_is_not_cancelled_nor_moved(
    client: TestClient, start_worker: StartWorker, store: Callable[[], None], state: str, is_stored: bool
) -> None:
    job_id = sent(client, fails=state == "dead")
    start_worker()
    eventually(lambda: state_of(client, job_id) == state)
    if is_stored:
        store()
    for answer in (client.post(f"/jobs/{job_id}/cancel"), client.patch(f"/jobs/{job_id}", json={"priority": 1})):
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, "urn:callboard:problem:wrong-state")
        assert (problem["job_id"], problem["state"]) == (job_id, state)
        assert state in problem["detail"]
    assert state_of(client, job_id) == state


@pytest.mark.parametrize("job_id", [UNKNOWN, "7", "%00"])
def test_an_unknown_job_is_not_found(client: TestClient, job_id: str) -> None:
    for answer in (
        client.post(f"/jobs/{job_id}/cancel"),
        client.post(f"/jobs/{job_id}/retry"),
        client.patch(f"/jobs/{job_id}", json={"priority": 1}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:callboard:problem:not-found")


def test_a_dead_job_is_retried_and_no_other(
    client: TestClient, start_worker: StartWorker, gate: threading.Event, store: Callable[[], None]
) -> None:
    waiting, cancelled, job_id = sent(client, waits=True), sent(client), sent(client, fails=True)
    client.post(f"/jobs/{cancelled}/cancel")
    start_worker()
    eventually(lambda: state_of(client, job_id) == "dead")
    client.post("/queues/default/pause")
    store()
    answer = client.post(f"/jobs/{job_id}/retry", json={"why": "it is mended"})
    assert (answer.status_code, answer.json()) == (202, {"job_id": job_id, "state": "pending", "status": "pending"})
    for other, state in ((job_id, "pending"), (waiting, "running"), (cancelled, "cancelled")):
        answer = client.post(f"/jobs/{other}/retry")
        assert (answer.status_code, answer.json()["state"]) == (409, state)
    gate.set()
    client.post("/queues/default/resume")
    eventually(lambda: state_of(client, job_id) == "succeeded")
    answer = client.post(f"/jobs/{job_id}/retry")
    assert (answer.status_code, answer.json()["state"]) == (409, "succeeded")


def test_a_waiting_job_gets_another_priority_and_time(
    client: TestClient, broker: RedisBroker, store: Callable[[], None]
) -> None:
    first, second = sent(client), sent(client)
    answer = client.patch(f"/jobs/{second}", json={"priority": 0, "why": "urgent"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"job_id": second, "state": "pending", "status": "pending", "priority": 0, "run_at": None},
    )
    later = datetime.now(UTC) + timedelta(hours=1)
    answer = client.patch(f"/jobs/{first}", json={"run_at": later.isoformat()}).json()
    assert answer["state"] == "scheduled"
    assert abs(datetime.fromisoformat(answer["run_at"]) - later) < timedelta(milliseconds=2)
    store()
    assert state_of(client, first) == "scheduled"
    [delivery], _ = broker.fetch("default", 5)
    assert delivery.message_id == second
    answer = client.patch(f"/jobs/{second}", json={"priority": 9})
    assert (answer.status_code, answer.json()["state"]) == (409, "running")

    assert client.patch(f"/jobs/{first}", json={"delay_seconds": 0}).json()["state"] == "pending"
    [delivery], _ = broker.fetch("default", 5)
    assert delivery.message_id == first
    assert delivery.kwargs == {"fails": False, "waits": False}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "body"),
        ({"priority": 10}, "body.priority"),
        ({"priority": -1}, "body.priority"),
        ({"priority": "high"}, "body.priority"),
        ({"delay_seconds": -1}, "body.delay_seconds"),
        ({"delay_seconds": 1e9}, "body.delay_seconds"),
        ({"run_at": "tomorrow"}, "body.run_at"),
        ({"run_at": "2026-12-01T08:00:00"}, "body.run_at"),
        ({"run_at": "2126-12-01T08:00:00Z"}, "run_at"),
        ({"run_at": "2026-12-01T08:00:00Z", "delay_seconds": 1}, "delay_seconds"),
        ({"prio": 1}, "body.prio"),
        ({"priority": 1, "why": "x" * 501}, "body.why"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_change_that_can_not_be_is_refused_and_names_the_field(
    client: TestClient, changes: dict[str, Any], field: str
) -> None:
    job_id = sent(client)
    answer = client.patch(f"/jobs/{job_id}", json=changes)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert state_of(client, job_id) == "pending"


def test_an_id_has_one_address_in_either_case(client: TestClient) -> None:
    job_id = sent(client)
    assert client.post(f"/jobs/{job_id.upper()}/cancel").json()["job_id"] == job_id
    assert client.post(f"/jobs/{uuid.uuid4()}/cancel").status_code == 404
