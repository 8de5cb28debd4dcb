"""`/dead-letters`: what can be done with the `callboard dead-letters` command can be done over HTTP."""

import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import dramatiq
import pytest
from dramatiq.message import Message
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.broker import RedisBroker
from service.broker.outcome import Dead, Failure, Reason
from service.broker.settlement import settlement_of
from service.job import Job, Personal
from service.state.database import engine_for
from service.state.history import History


@pytest.fixture
def client(broker: RedisBroker, database_url: str) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="parcel.send", queue_name="email", actor_class=Job)
    def send(*, n: int, to: Annotated[str, Personal] = "ada@example.org") -> None: ...

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


def die(broker: RedisBroker, n: int = 1, reason: Reason = Reason.FAILED, error: str = "smtplib.SMTPDataError") -> str:
    message: Message[Any] = broker.get_actor("parcel.send").message(n=n)
    broker.send(message)
    kill(broker, reason, error)
    return message.message_id


def kill(broker: RedisBroker, reason: Reason = Reason.FAILED, error: str = "smtplib.SMTPDataError") -> None:
    [delivery] = broker.fetch("email", 1)[0]
    delivery.outcome = Dead(Failure(error, "no", "Traceback ..."), reason)
    broker.settle("email", [settlement_of(delivery)])
    time.sleep(0.002)  # no two in one millisecond


def test_all_that_is_known_of_one_is_shown_but_for_what_is_personal(client: TestClient, broker: RedisBroker) -> None:
    job_id = die(broker, n=7)
    shown = client.get(f"/dead-letters/{job_id}").json()
    assert (shown["job_id"], shown["function"], shown["original_queue"]) == (job_id, "parcel.send", "email")
    assert shown["reason"] == "failed"
    assert shown["error"] == {"type": "smtplib.SMTPDataError", "message": "no", "traceback": "Traceback ..."}
    assert shown["payload"]["kwargs"] == {"n": 7, "to": "***"}
    assert [attempt["attempt"] for attempt in shown["attempts"]] == [1]
    assert shown["failed_at"].endswith(("Z", "+00:00"))
    assert client.get(f"/dead-letters/{uuid.uuid4()}").status_code == 404


def test_pages_lead_through_all_that_fit_the_newest_first(client: TestClient, broker: RedisBroker) -> None:
    died = [die(broker, n=number) for number in range(5)]
    crashed = die(broker, reason=Reason.CRASHED)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        query: dict[str, Any] = {"queue": "email", "reason": "failed", "error_type": "SMTPDataError", "limit": 2}
        page = client.get("/dead-letters", params=query | ({"cursor": cursor} if cursor else {})).json()
        found += [letter["job_id"] for letter in page["dead_letters"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == died[::-1]
    [only] = client.get("/dead-letters", params={"reason": "crashed"}).json()["dead_letters"]
    assert only["job_id"] == crashed


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"queue": "no-such"}, "queue"),
        ({"reason": "boredom"}, "query.reason"),
        ({"since": "2026-01-01T00:00:00"}, "query.since"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": "0"}, "query.limit"),
        ({"colour": "red"}, "query.colour"),
    ],
)
def test_a_filter_that_is_none_is_refused(client: TestClient, query: dict[str, str], field: str) -> None:
    answer = client.get("/dead-letters", params=query)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_replayed_job_is_on_its_queue_under_its_id(client: TestClient, broker: RedisBroker) -> None:
    job_id = die(broker)
    answer = client.post(f"/dead-letters/{job_id}/replay", json={"why": "the server is back"})
    assert (answer.status_code, answer.json()) == (200, {"job_id": job_id, "queue": "email", "again": False})
    assert client.get(f"/jobs/{job_id}").json()["state"] == "pending"
    assert client.get(f"/dead-letters/{job_id}").status_code == 404
    kill(broker)
    [replay] = client.get(f"/dead-letters/{job_id}").json()["replays"]
    assert (replay["by"], replay["why"]) == ("anybody", "the server is back")


def test_a_repeated_request_replays_nothing_twice(client: TestClient, broker: RedisBroker) -> None:
    job_id = die(broker)
    key = {"Idempotency-Key": "once"}
    assert client.post(f"/dead-letters/{job_id}/replay", json={}, headers=key).json()["again"] is False
    kill(broker)
    again = client.post(f"/dead-letters/{job_id}/replay", json={}, headers=key)
    assert (again.status_code, again.json()["again"]) == (200, True)
    assert client.get(f"/dead-letters/{job_id}").status_code == 200
    bulk = client.post("/dead-letters/replay", json={"filter": {}, "all": True}, headers=key).json()
    assert (bulk["replayed"], bulk["counts"]) == (1, []), "what it had done before, and nothing more"
    assert client.get(f"/dead-letters/{job_id}").status_code == 200


def test_a_payload_is_edited_and_checked(client: TestClient, broker: RedisBroker) -> None:
    job_id = die(broker, n=1)
    wrong = client.post(f"/dead-letters/{job_id}/replay", json={"payload": {"n": "x"}})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "payload.n")
    right = client.post(f"/dead-letters/{job_id}/replay", json={"payload": {"n": 2}, "delay_seconds": 60})
    assert right.status_code == 200
    assert client.get(f"/jobs/{job_id}").json()["state"] == "scheduled"


def test_many_are_counted_before_they_are_replayed(client: TestClient, broker: RedisBroker) -> None:
    died = [die(broker, n=number) for number in range(4)]
    die(broker, reason=Reason.CRASHED)
    asked = {"filter": {"reason": "failed"}, "limit": 3}
    counts = [{"queue": "email", "function": "parcel.send", "reason": "failed", "number": 3}]
    dry = client.post("/dead-letters/replay", json=asked | {"dry_run": True}).json()
    assert dry == {"replayed": 3, "skipped": 0, "dry_run": True, "counts": counts}
    assert broker.wire.backlog("email") == 0
    done = client.post("/dead-letters/replay", json=asked).json()
    assert done == dry | {"dry_run": False}
    assert {client.get(f"/jobs/{job_id}").json()["state"] for job_id in died[:3]} == {"pending"}, "the oldest first"
    left = client.get("/dead-letters").json()["dead_letters"]
    assert [letter["reason"] for letter in left] == ["crashed", "failed"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": {}},
        {"filter": {"queue": None}},
        {"filter": {"queue": None}, "all": True},
        {"filter": {"queue": "email", "reason": None}},
        {"filter": {"colour": "red"}},
        {"filter": {"queue": "email"}, "limit": 1001},
        {"filter": {"queue": "email"}, "dryrun": True},
    ],
)
def test_a_request_for_many_that_is_mistaken_does_nothing(
    client: TestClient, broker: RedisBroker, body: dict[str, Any]
) -> None:
    die(broker)
    assert client.post("/dead-letters/replay", json=body).status_code == 422
    assert broker.wire.backlog("email") == 0


def test_a_deleted_one_is_gone(client: TestClient, broker: RedisBroker) -> None:
    job_id = die(broker)
    assert client.delete(f"/dead-letters/{job_id}").status_code == 204
    assert client.delete(f"/dead-letters/{job_id}").status_code == 404
    assert client.get(f"/jobs/{job_id}").json()["state"] == "dead", "its history stays"
