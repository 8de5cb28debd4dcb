"""`Idempotency-Key`: a repeated request makes one job, at whichever point the first one was cut off."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
import redis
from fastapi.testclient import TestClient

from service.api.app import build_app
from service.api.idempotency_key import IdempotencyKey
from service.broker import RedisBroker
from service.errors import BrokerUnavailable
from service.job import Job
from service.state.database import engine_for
from service.state.history import History
from tests.servers import eventually

ASKED = {"type": "count.up", "payload": {"n": 1, "m": 2}}


@pytest.fixture
def client(broker: RedisBroker, database_url: str) -> Iterator[TestClient]:
    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int, m: int = 0) -> None: ...

    with TestClient(build_app(broker, History(engine_for(database_url), broker))) as client:
        yield client


def post(client: TestClient, key: str | None, asked: Any = ASKED) -> Any:
    return client.post("/jobs", json=asked, headers={} if key is None else {"Idempotency-Key": key})


def test_a_repeated_request_gets_the_first_job_also_when_it_has_ended(client: TestClient, broker: RedisBroker) -> None:
    first = post(client, "k")
    again = post(client, "k", {"payload": {"m": 2, "n": 1}, "type": "count.up"})
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert broker.wire.backlog("default") == 1
    broker.flush("default")
    assert post(client, "k").json() == first.json()
    assert broker.wire.backlog("default") == 0


def test_other_keys_and_no_key_make_other_jobs(client: TestClient, broker: RedisBroker) -> None:
    answers = [post(client, key) for key in ("a", "b", "A", " a b ", None, None)]
    assert len({answer.json()["job_id"] for answer in answers}) == 6
    assert broker.wire.backlog("default") == 6


def test_another_request_with_the_same_key_is_refused(client: TestClient, broker: RedisBroker) -> None:
    post(client, "k")
    answer = post(client, "k", {"type": "count.up", "payload": {"n": 2}})
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("idempotency-key-reused")
    assert broker.wire.backlog("default") == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "ümlaut", "tab\tin"])
def test_a_key_that_is_none_is_refused_by_name(client: TestClient, broker: RedisBroker, key: str) -> None:
    answer = client.post("/jobs", json=ASKED, headers=[("Idempotency-Key", key.encode("latin-1"))])  # type: ignore[arg-type]
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"
    assert broker.wire.backlog("default") == 0


def test_a_request_that_is_refused_keeps_no_key(client: TestClient) -> None:
    assert post(client, "k", {"type": "count.up", "payload": {"n": "x"}}).status_code == 422
    assert post(client, "k").status_code == 202


def test_many_at_once_make_one_job(client: TestClient, broker: RedisBroker) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: post(client, "k"), range(64)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["job_id"] for answer in answers if answer.status_code == 202}) == 1
    assert broker.wire.backlog("default") == 1


def cut(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, *, after: bool) -> None:
    """Let one call fail, before or after it was carried out."""
    real, left = getattr(target, name), [1]

    def once(*args: Any, **kwargs: Any) -> Any:
        if not left:
            return real(*args, **kwargs)
        left.pop()
        if after:
            real(*args, **kwargs)
        raise redis.ConnectionError("cut")

    monkeypatch.setattr(target, name, once)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["record", "job", "end"])
def test_a_request_that_was_cut_off_anywhere_makes_one_job_when_it_is_repeated(
    client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    if where == "job":
        cut(monkeypatch, broker, "send_rows", after=after)
    else:
        real, calls = broker.client.set, []

        def set_(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) != (1 if where == "record" else 2):
                return real(*args, **kwargs)
            if after:
                real(*args, **kwargs)
            raise redis.ConnectionError("cut")

        monkeypatch.setattr(broker.client, "set", set_)
    with TestClient(client.app, raise_server_exceptions=False) as failing:
        assert post(failing, "k").status_code >= 500
    monkeypatch.undo()
    now = time.time()
    monkeypatch.setattr("service.api.idempotency.time.time", lambda: now + 11)
    time.sleep(1.1)  # after an error of Redis, requests are answered at once for a second
    answer = post(client, "k")
    assert answer.status_code == 202
    assert broker.wire.backlog("default") == 1
    assert client.get(answer.headers["location"]).status_code == 200
    assert post(client, "k").json() == answer.json()


def test_the_second_of_two_that_are_under_way_is_told_to_wait(
    client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = broker.send_rows
    inner: list[Any] = []

    def slow(*args: Any, **kwargs: Any) -> bool:
        monkeypatch.setattr(broker, "send_rows", real)
        with ThreadPoolExecutor(1) as pool:
            inner.append(pool.submit(post, client, "k").result())
        return real(*args, **kwargs)

    monkeypatch.setattr(broker, "send_rows", slow)
    assert post(client, "k").status_code == 202
    assert inner[0].status_code == 409
    assert inner[0].headers["retry-after"] == "1"
    assert broker.wire.backlog("default") == 1


def test_two_headers_are_refused(client: TestClient, broker: RedisBroker) -> None:
    for headers in ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], [("idempotency-key", "a")] * 2):
        answer = client.post("/jobs", json=ASKED, headers=headers)
        [error] = answer.json()["errors"]
        assert (answer.status_code, error["field"], error["message"]) == (422, "Idempotency-Key", "must be given once")
    assert broker.wire.backlog("default") == 0


@pytest.mark.parametrize(("length", "status"), [(0, 422), (1, 202), (255, 202), (256, 422)])
def test_a_key_has_1_to_255_characters(client: TestClient, broker: RedisBroker, length: int, status: int) -> None:
    answers = [post(client, "k" * length) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status] * 2
    assert broker.wire.backlog("default") == (1 if status == 202 else 0)


def test_white_space_and_the_order_of_members_make_no_other_request(client: TestClient, broker: RedisBroker) -> None:
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    bodies = (
        b'{"type":"count.up","payload":{"n":1,"m":2}}',
        b'\n{ "payload" : {\t"m": 2,\r\n "n": 1 }, "type":\n"count.up" }\n ',
        b'{"type":"count\\u002eup","payload":{"n":1,"m":2}}',
    )
    answers = [client.post("/jobs", content=body, headers=headers) for body in bodies]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert broker.wire.backlog("default") == 1
    other = client.post("/jobs", content=b'{"type":"count.up","payload":{"n":1,"m":3}}', headers=headers)
    assert other.status_code == 422


@pytest.mark.parametrize("name", ["priority", "delay_seconds"])
def test_zero_is_something_that_is_asked_for(client: TestClient, broker: RedisBroker, name: str) -> None:
    assert post(client, "k").status_code == 202
    answer = post(client, "k", {**ASKED, name: 0})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:callboard:problem:idempotency-key-reused")
    assert post(client, "other", {**ASKED, name: 0}).status_code == 202
    assert post(client, "other", {**ASKED, name: 0}).status_code == 202
    assert post(client, "other").status_code == 422
    assert broker.wire.backlog("default") == 2


def test_a_key_is_free_when_its_time_is_over(
    client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("idempotency", "sending"):
        monkeypatch.setattr(f"service.api.{module}.KEPT_SECONDS", 1)
    first = post(client, "k").json()
    assert post(client, "k").json() == first
    other = {"type": "count.up", "payload": {"n": 7}}
    eventually(lambda: post(client, "k", other).status_code == 202)
    assert post(client, "k", other).json() != first
    assert broker.wire.backlog("default") == 2


@pytest.mark.parametrize("status", [422, 503])
def test_an_answer_that_stored_nothing_does_not_pin_the_key(
    client: TestClient, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    asked: Any = ASKED
    with monkeypatch.context() as broken:
        if status == 422:
            asked = {"type": "count.up", "payload": {"n": "x"}}
        else:
            refusal = BrokerUnavailable("away", may_be_stored=False)

            def refuse(*_: Any, **__: Any) -> None:
                raise refusal

            broken.setattr(broker, "send_rows", refuse)
        assert post(client, "k", asked).status_code == status
    other = {"type": "count.up", "payload": {"n": 7}}
    # After an outage requests are answered at once for a second.
    eventually(lambda: post(client, "k", other).status_code == 202)
    assert post(client, "k").status_code == 422
    assert broker.wire.backlog("default") == 1


def test_a_key_of_another_path_is_another_key(client: TestClient, broker: RedisBroker) -> None:
    assert post(client, "k").status_code == 202
    batch = client.post("/jobs/batch", json={"jobs": [ASKED]}, headers={"Idempotency-Key": "k"})
    assert (batch.status_code, batch.json()["errors"][0]["field"]) == (422, "Idempotency-Key"), "it takes none"
    assert broker.wire.backlog("default") == 1
    routes, tenants = ("POST /jobs", "POST /schedules/{name}/run"), (None, "acme", "umbrella")
    keys = [IdempotencyKey(text, tenant, route) for text in ("k", "l") for route in routes for tenant in tenants]
    assert len({key.scoped for key in keys}) == len(keys)
