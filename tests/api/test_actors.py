"""`/actors`: what a client in another language needs to know before it sends."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Unique, job
from service.queues import QUEUES, Backoff
from service.state.database import engine_for
from service.state.history import History


@pytest.fixture
def client(broker: RedisBroker, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr("service.job.broker", broker)

    @job(
        name="report.make",
        queue="reports",
        aliases=["generate-report"],
        priority=2,
        max_attempts=4,
        backoff=Backoff(delay_seconds=5, cap_seconds=50, factor=3),
        timeout=100,
        soft_timeout=90,
        expires="2h",
        isolation="process",
        memory_limit_mb=512,
        idempotency_key="{month}",
        idempotency_ttl="7d",
        idempotency_scope="global",
        unique=Unique("{month}"),
    )
    def make(*, month: str, rows: int = 10) -> None:
        """Make a report.

        Slowly.
        """

    @dramatiq.actor(broker=broker, actor_name="plain", time_limit=float("inf"))
    def plain(*args: Any) -> None: ...

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


def test_an_actor_is_shown_with_its_payload_and_all_that_holds_for_it(client: TestClient) -> None:
    shown = client.get("/actors/generate-report").json()
    assert shown == client.get("/actors/report.make").json()
    payload = shown.pop("payload")
    assert payload["required"] == ["month"]
    assert payload["properties"]["rows"]["default"] == 10
    assert payload["additionalProperties"] is False
    assert shown == {
        "name": "report.make",
        "aliases": ["generate-report"],
        "queue": "reports",
        "description": "Make a report.",
        "payload_version": 1,
        "policy": {
            "priority": 2,
            "max_attempts": 4,
            "backoff_seconds": 5,
            "backoff_cap_seconds": 50,
            "backoff_factor": 3,
            "timeout_seconds": 100,
            "soft_timeout_seconds": 90,
            "expires_seconds": 7200,
            "max_deliveries": 3,
            "isolation": "process",
            "memory_limit_mb": 512,
            "idempotency_ttl_seconds": 7 * 24 * 3600,
            "idempotency_scope": "global",
            "is_keyed": True,
            "is_unique": True,
        },
    }


def test_what_an_actor_does_not_say_is_its_queues(client: TestClient) -> None:
    shown = client.get("/actors/plain").json()
    policy = QUEUES["default"]
    assert shown["payload"] is None
    assert shown["policy"]["max_attempts"] == policy.max_attempts
    assert shown["policy"]["backoff_seconds"] == policy.backoff.delay_seconds
    assert shown["policy"]["priority"] == 5
    assert shown["policy"]["timeout_seconds"] is None, "endless"
    assert (shown["policy"]["is_keyed"], shown["policy"]["is_unique"]) == (False, False)


def test_all_are_listed_by_name_and_an_unknown_one_is_none(client: TestClient) -> None:
    names = [each["name"] for each in client.get("/actors").json()["actors"]]
    assert names == ["plain", "report.make"]
    assert client.get("/actors/no.such").status_code == 404
