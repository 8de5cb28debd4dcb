"""`GET /jobs/{id}/timeline`: all that has happened to a job."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from dramatiq.worker import Worker
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from service.api.app import build_app
from service.api.timelines import waits_of
from service.broker import RedisBroker
from service.job import Backoff, Personal, current_job, job
from service.state.history import History
from service.state.states import State
from service.state.step import NOTHING_SEEN, Step
from tests.servers import eventually


@pytest.fixture
def client(broker: RedisBroker, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr("service.job.broker", broker)
    at_once = Backoff(delay_seconds=0, cap_seconds=0, jitter=0)

    @job(name="child", queue="default")
    def child(*, n: int) -> None: ...

    @job(name="parent", queue="default", max_attempts=2, backoff=at_once)
    def parent(*, n: int, to: Annotated[str, Personal] = "ada@example.org") -> None:
        mine = current_job()
        mine.progress(1, 2, "half")
        mine.log("so far", rows=7)
        time.sleep(1)  # what a job says is sent soon, and not after its end
        if mine.attempt == 1:
            raise OSError("not yet")
        child.send(n=n)

    with TestClient(build_app(broker, History(engine, broker))) as client:
        yield client


def test_every_step_is_told_with_its_attempt_and_worker_and_what_the_job_says(
    client: TestClient, project: Callable[[], None], start_worker: Callable[..., Worker]
) -> None:
    job_id = client.post("/jobs", json={"type": "parent", "payload": {"n": 3}, "priority": 2}).json()["job_id"]
    start_worker()

    def told() -> Any:
        project()
        return client.get(f"/jobs/{job_id}/timeline").json()

    eventually(lambda: told()["children"] and told()["job"]["is_terminal"])
    eventually(lambda: len([event for event in told()["events"] if event["kind"] == "log"]) == 2)
    story = told()
    states = [event["state"] for event in story["events"] if event["state"]]
    assert states == ["pending", "running", "retrying", "running", "succeeded"]
    assert story["job"]["status"] == "succeeded"
    assert story["job"]["priority"] == 2
    assert story["payload"] == {"n": 3, "to": "***"}
    runs = [event for event in story["events"] if event["state"] == "running"]
    assert [run["attempt"] for run in runs] == [1, 2]
    assert all(run["worker"] for run in runs)
    [failed] = [event for event in story["events"] if event["state"] == "retrying"]
    assert failed["error"] == {"type": "OSError", "message": "not yet"}
    logs = [event["data"] for event in story["events"] if event["kind"] == "log"]
    assert "so far" in str(logs)
    assert any(event["kind"] == "progress" and event["data"]["note"] == "half" for event in story["events"])
    assert {wait["what_for"] for wait in story["waits"]} <= {"worker", "retry"}
    [child] = story["children"]
    assert child["type"] == "child"
    assert client.get(f"/jobs/{child['job_id']}/timeline").json()["parent_id"] == job_id


@pytest.mark.parametrize("job_id", ["x", "00000000-0000-0000-0000-000000000000"])
def test_a_job_of_nobody_has_none(client: TestClient, job_id: str) -> None:
    assert client.get(f"/jobs/{job_id}/timeline").status_code == 404


START = datetime(2026, 1, 1, tzinfo=UTC)


def step(at: float, state: State, *, run_at: float | None = None, key: str | None = None) -> Step:
    due = None if run_at is None else START + timedelta(seconds=run_at)
    return Step(NOTHING_SEEN, "x", START + timedelta(seconds=at), state, 1, run_at=due, key=key)


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ([step(0, State.PENDING)], [("worker", None)]),
        ([step(0, State.PENDING), step(3, State.RUNNING)], [("worker", 3)]),
        ([step(0, State.SCHEDULED, run_at=60)], [("time", 60)]),
        ([step(0, State.SCHEDULED, run_at=60), step(65, State.RUNNING)], [("time", 60), ("worker", 5)]),
        ([step(0, State.SCHEDULED, run_at=60), step(20, State.CANCELLED)], [("time", 20)]),
        ([step(0, State.RETRYING, run_at=9), step(9, State.RUNNING)], [("retry", 9)]),
        ([step(0, State.WAITING, key="k"), step(4, State.RUNNING)], [("key", 4)]),
        ([step(0, State.RUNNING), step(4, State.SUCCEEDED)], []),
    ],
    ids=["queued", "started", "scheduled", "late", "cancelled", "retry", "key", "none"],
)
def test_what_it_has_waited_for(steps: list[Step], waits: list[tuple[str, float | None]]) -> None:
    assert [(wait.what_for, wait.seconds) for wait in waits_of(steps)] == waits
