"""`/queues` and `/workers` over HTTP."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.worker import Worker
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job
from service.queues import QUEUES
from service.state.database import engine_for
from service.state.history import History
from tests.servers import eventually

StartWorker = Callable[..., Worker]


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def client(broker: RedisBroker, database_url: str, gate: threading.Event) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="job.run", actor_class=Job)
    def run(*, waits: bool = False) -> None:
        while waits and not gate.is_set():
            time.sleep(0.01)

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


def send(client: TestClient, count: int = 1, **payload: Any) -> list[str]:
    return [client.post("/jobs", json={"type": "job.run", "payload": payload}).json()["job_id"] for _ in range(count)]


def test_every_queue_is_listed_with_its_counts(client: TestClient) -> None:
    send(client, 2)
    queues = client.get("/queues").json()["queues"]
    assert [queue["name"] for queue in queues] == list(QUEUES)
    default = client.get("/queues/default").json()
    assert default.pop("oldest_seconds") >= 0
    assert default == {
        "name": "default",
        "paused": None,
        "counts": {**{"pending": 2, "scheduled": 0, "waiting": 0, "running": 0, "retrying": 0, "paused": 0, "dead": 0}},
        "counts_are_exact": True,
        "finished_per_minute": 0.0,
        "workers": 0,
    }
    email = next(queue for queue in queues if queue["name"] == "email")
    assert email["oldest_seconds"] is None
    assert email["counts"]["pending"] == 0


def test_a_queue_is_paused_and_resumed(client: TestClient, start_worker: StartWorker) -> None:
    start_worker()
    assert client.post("/queues/default/pause", json={"why": "the database moves"}).json() == {
        "name": "default",
        "paused": True,
        "changed": True,
    }
    assert client.post("/queues/default/pause").json()["changed"] is False
    [job_id] = send(client)
    view = client.get("/queues/default").json()
    assert (view["paused"]["by"], view["paused"]["why"]) == ("anybody", "the database moves")
    assert (view["counts"]["paused"], view["counts"]["pending"]) == (1, 0)
    assert client.get(f"/jobs/{job_id}").json()["state"] == "pending"
    assert client.post("/queues/default/resume").json() == {"name": "default", "paused": False, "changed": True}
    eventually(lambda: client.get(f"/jobs/{job_id}").json()["state"] == "succeeded", 2)
    assert client.post("/queues/default/resume").json()["changed"] is False
    assert client.get("/queues/default").json()["paused"] is None


def test_a_purge_asks_for_the_name_and_can_be_tried_first(client: TestClient) -> None:
    jobs = send(client, 3)
    for confirm in ("", "?confirm=email", "?confirm="):
        answer = client.post(f"/queues/default/purge{confirm}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "confirm")
        assert "?confirm=default" in answer.json()["detail"]
    tried = client.post("/queues/default/purge?dry_run=true").json()
    assert (tried["purged"], tried["dry_run"], tried["counts"]["pending"]) == (3, True, 3)
    assert client.get("/queues/default").json()["counts"]["pending"] == 3
    done = client.post("/queues/default/purge?confirm=default", json={"why": "a flood"}).json()
    assert (done["purged"], done["dry_run"], done["kept"]) == (3, False, False)
    assert {client.get(f"/jobs/{job_id}").json()["state"] for job_id in jobs} == {"cancelled"}
    assert client.post("/queues/default/purge?confirm=default").json()["purged"] == 0


@pytest.mark.parametrize("option", ["dryrun=true", "dry-run=true", "keeep=true"])
def test_a_purge_with_a_misspelt_option_purges_nothing(client: TestClient, option: str) -> None:
    send(client)
    answer = client.post(f"/queues/default/purge?confirm=default&{option}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, f"query.{option[:-5]}")
    assert client.get("/queues/default").json()["counts"]["pending"] == 1


def test_what_is_purged_can_be_kept_and_retried(client: TestClient) -> None:
    [job_id] = send(client)
    done = client.post("/queues/default/purge?confirm=default&keep=true").json()
    assert (done["purged"], done["kept"]) == (1, True)
    assert client.get(f"/jobs/{job_id}").json()["state"] == "dead"
    assert client.get("/queues/default").json()["counts"]["dead"] == 1
    assert client.post(f"/jobs/{job_id}/retry").status_code == 202
    assert client.get(f"/jobs/{job_id}").json()["state"] == "pending"


@pytest.mark.parametrize(
    ("method", "path"),
    [("get", ""), ("post", "/pause"), ("post", "/resume"), ("post", "/purge?confirm=emial")],
    ids=["get", "pause", "resume", "purge"],
)
def test_an_unknown_queue_is_not_found_and_the_known_ones_are_named(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, f"/queues/emial{path}")
    assert answer.status_code == 404
    assert "known queues: email, default" in answer.json()["detail"]


def test_the_workers_say_what_they_run(client: TestClient, broker: RedisBroker, start_worker: StartWorker) -> None:
    worker = start_worker(threads=2)
    [job_id] = send(client, waits=True)
    eventually(lambda: client.get(f"/jobs/{job_id}").json()["state"] == "running")
    broker.presence.changed()
    eventually(lambda: client.get("/workers").json()["workers"][0]["running"] == 1)
    [known] = client.get("/workers").json()["workers"]
    assert (known["threads"], known["draining"], known["queues"]) == (2, False, ["default"])
    [running] = known["jobs"]
    assert (running["job_id"], running["type"], running["attempt"]) == (job_id, "job.run", 1)
    assert client.get("/queues/default").json()["workers"] == 1
    client.post(f"/jobs/{job_id}/cancel")
    send(client, 5)
    eventually(lambda: client.get("/queues/default").json()["counts"]["pending"] == 0)
    broker.presence.changed()
    eventually(lambda: client.get("/queues/default").json()["finished_per_minute"] >= 5)
    worker.stop()
    eventually(lambda: client.get("/workers").json()["workers"] == [])
