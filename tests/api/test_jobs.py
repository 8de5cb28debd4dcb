"""`POST /jobs` and `GET /jobs/{id}`, in this process: what is refused, and how."""

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import dramatiq
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from service.api.app import build_app
from service.broker import RedisBroker
from service.broker.notes import Note
from service.broker.once import remembered
from service.broker.outcome import Succeeded
from service.broker.settlement import settlement_of
from service.job import Job, Unique, job
from service.state.database import engine_for
from service.state.history import History
from service.state.states import Status
from tests.servers import RedisServer


class Parcel(BaseModel):
    to: str
    weight: float = 1.0
    ref_id: str | None = None


@pytest.fixture
def app(broker: RedisBroker, database_url: str) -> Any:
    @dramatiq.actor(broker=broker, actor_name="parcel.send", actor_class=Job)
    def send(parcel: Parcel) -> None: ...

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int) -> None: ...

    broker.declare_alias("send-parcel", send)
    return build_app(broker, History(engine_for(database_url), broker))


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_a_job_is_accepted_and_can_be_read_at_once(client: TestClient) -> None:
    answer = client.post("/jobs", json={"type": "parcel.send", "payload": {"to": "Ada"}})
    assert answer.status_code == 202
    body = answer.json()
    assert set(body) == {"job_id", "status", "poll_url"}
    assert body["status"] == "pending"
    assert uuid.UUID(body["job_id"])
    assert body["poll_url"] == answer.headers["location"] == f"/jobs/{body['job_id']}"

    job = client.get(body["poll_url"]).json()
    assert job["job_id"] == body["job_id"]
    assert (job["status"], job["type"], job["queue"], job["is_terminal"]) == (
        "pending",
        "parcel.send",
        "default",
        False,
    )
    assert (job["started_at"], job["completed_at"]) == (None, None)
    assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)
    assert "result" not in job
    assert "error" not in job


def test_an_alias_is_a_type_of_its_actor(client: TestClient) -> None:
    answer = client.post("/jobs", json={"type": "send-parcel", "payload": {"to": "Ada"}})
    assert client.get(answer.json()["poll_url"]).json()["type"] == "parcel.send"


def test_a_job_has_one_address_in_either_case(client: TestClient) -> None:
    job_id = client.post("/jobs", json={"type": "count.up", "payload": {"n": 1}}).json()["job_id"]
    assert client.get(f"/jobs/{job_id.upper()}").json()["job_id"] == job_id
    for other in (f"{{{job_id}}}", f"urn:uuid:{job_id}", job_id.replace("-", "")):
        answer = client.get(f"/jobs/{other}")
        assert (answer.status_code, answer.json()["detail"]) == (404, f"Job {other} not found")


@pytest.mark.parametrize("job_id", ["00000000-0000-4000-8000-000000000000", "17", "x" * 100])
def test_an_unknown_job_is_not_found(client: TestClient, job_id: str) -> None:
    answer = client.get(f"/jobs/{job_id}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"Job {job_id} not found"
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_unknown_type_is_answered_with_the_known_ones(client: TestClient) -> None:
    answer = client.post("/jobs", json={"type": "X", "payload": {}})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "Unknown job type: X"
    assert answer.json()["known_types"] == ["count.up", "parcel.send", "send-parcel"]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "payload.to"),
        ({"to": 1}, "payload.to"),
        ({"to": "Ada", "weight": "heavy"}, "payload.weight"),
        ({"to": "Ada", "colour": "red"}, "payload.colour"),
    ],
)
def test_a_bad_payload_is_refused_with_the_path_of_the_field(
    client: TestClient, payload: dict[str, Any], field: str
) -> None:
    answer = client.post("/jobs", json={"type": "parcel.send", "payload": payload})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert field.removeprefix("payload.") in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"payload": {}}, "type"),
        ({"type": "parcel.send", "payload": []}, "payload"),
        ({"type": "parcel.send", "payload": {"to": "Ada"}, "queue": "x"}, "queue"),
        ([], "body"),
    ],
)
def test_a_request_of_another_shape_is_refused_with_its_field(client: TestClient, body: Any, field: str) -> None:
    answer = client.post("/jobs", json=body)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"type": "count.up", "payload": {"n": NaN}}', b"[" * 100_000])
def test_what_is_not_json_is_refused_and_never_an_error_of_the_server(client: TestClient, body: bytes) -> None:
    answer = client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("value", ["\x00", "\ud800", "a" * 1000])
def test_any_text_is_taken_whole_or_refused(client: TestClient, value: str) -> None:
    body = json.dumps({"type": "parcel.send", "payload": {"to": value}})
    answer = client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == (422 if value == "\ud800" else 202)


def test_a_ref_id_may_stand_beside_the_payload(client: TestClient, broker: RedisBroker) -> None:
    body = {"type": "parcel.send", "payload": {"to": "Ada"}, "ref_id": "order-7"}
    assert client.post("/jobs", json=body).status_code == 202
    [delivery] = broker.fetch("default", 1)[0]
    assert b'"ref_id":"order-7"' in delivery.encode()
    clash = {**body, "payload": {"to": "Ada", "ref_id": "order-8"}}
    assert client.post("/jobs", json=clash).status_code == 422
    not_taken = client.post("/jobs", json={"type": "count.up", "payload": {"n": 1}, "ref_id": "r"})
    assert not_taken.json()["errors"][0]["field"] == "payload.ref_id"


def test_without_redis_a_send_is_refused_and_says_whether_it_may_be_stored(
    app: Any, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: RedisBroker = app.state.broker
    own_redis.kill()
    monkeypatch.setattr(broker, "client", type(broker.client).from_url(own_redis.url))
    broker.__dict__.pop("scripts", None)
    with TestClient(app) as client:
        answer = client.post("/jobs", json={"type": "count.up", "payload": {"n": 1}})
        assert answer.status_code == 503
        assert answer.json()["may_be_stored"] is False
        assert int(answer.headers["retry-after"]) > 0
        assert str(own_redis.port) in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503


def test_without_the_database_jobs_are_accepted_and_read_from_redis(app: Any, broker: RedisBroker) -> None:
    app = build_app(broker, History(engine_for("postgresql://nobody@127.0.0.1:1/none"), broker))
    with TestClient(app) as client:
        sent = client.post("/jobs", json={"type": "count.up", "payload": {"n": 1}})
        assert sent.status_code == 202
        assert client.get(sent.json()["poll_url"]).json()["status"] == Status.PENDING
        unknown = client.get(f"/jobs/{uuid.uuid4()}")
        assert unknown.status_code == 503, "the database may know it"
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert "127.0.0.1:1" in ready.json()["checks"]["postgresql"]


def test_the_schema_describes_every_answer(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    assert set(schema["paths"]) >= {"/jobs", "/jobs/{job_id}", "/healthz", "/readyz"}


def test_a_running_job_shows_its_progress(client: TestClient, broker: RedisBroker) -> None:
    url = client.post("/jobs", json={"type": "count.up", "payload": {"n": 1}}).json()["poll_url"]
    [delivery] = broker.fetch("default", 1)[0]
    assert "progress" not in client.get(url).json()
    broker.wire.note("default", [Note(delivery.lease, "progress", '{"done": 3, "total": 10, "note": "rows"}')])
    assert client.get(url).json()["progress"] == {"done": 3, "total": 10, "note": "rows"}
    delivery.outcome = Succeeded("1")
    broker.settle("default", [settlement_of(delivery)])
    job = client.get(url).json()
    assert job["status"] == "succeeded"
    assert "progress" not in job


def test_a_duplicate_says_that_it_was_skipped(client: TestClient, broker: RedisBroker) -> None:
    shown: list[Any] = []
    for _ in range(2):
        message: Any = dramatiq.Message("default", "count.up", (), {"n": 1}, {"idempotency_key": "k"})
        broker.send(message)
        for delivery in broker.fetch("default", 1)[0]:
            delivery.outcome = Succeeded("7")
            broker.settle("default", [remembered(settlement_of(delivery), {})])
        while broker.settler._waiting:
            broker.settle("default", [broker.settler._waiting.popleft()])
        shown.append(client.get(f"/jobs/{message.message_id}").json())
    assert [(job["status"], job["result"], job.get("skipped")) for job in shown] == [
        ("succeeded", 7, None),
        ("succeeded", 7, True),
    ]


def test_a_send_that_meets_a_job_with_its_unique_key_is_a_conflict_that_names_it(
    app: Any, client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="account.sync", queue="default", unique=Unique("{account}"))
    def sync(*, account: str) -> None: ...

    first, second = (client.post("/jobs", json={"type": sync.actor_name, "payload": {"account": "a"}}) for _ in "ab")
    assert (first.status_code, second.status_code) == (202, 409)
    assert second.json()["type"] == "urn:callboard:problem:job-exists"
    assert second.json()["job_id"] == first.json()["job_id"]


def test_a_send_that_replaces_or_moves_a_waiting_job_names_it(
    app: Any, client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="account.newest", queue="default", unique=Unique("newest:{account}", on_conflict="replace"))
    def newest(*, account: str) -> None: ...

    @job(name="account.calm", queue="default", unique=Unique("calm:{account}", on_conflict="reschedule"))
    def calm(*, account: str) -> None: ...

    def post(actor: Any, key: str | None = None) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        answer = client.post("/jobs", json={"type": actor.actor_name, "payload": {"account": "a"}}, headers=headers)
        assert answer.status_code == 202
        return answer.json()

    first, second = post(newest), post(newest)
    assert second["replaced"] == first["job_id"] != second["job_id"]
    assert client.get(f"/jobs/{first['job_id']}").json()["state"] == "cancelled"
    waiting, moved = post(calm), post(calm)
    assert waiting["job_id"] not in (first["job_id"], second["job_id"])
    assert (moved["job_id"], moved["rescheduled"]) == (waiting["job_id"], waiting["job_id"])
    assert [post(calm, "k")["job_id"] for _ in range(2)] == [waiting["job_id"]] * 2
