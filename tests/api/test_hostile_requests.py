"""Requests that are meant to break something: each is refused as a problem, and costs the others nothing."""

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import dramatiq
import pytest

from service.api import body_limit
from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job
from service.state.database import engine_for
from service.state.history import History
from tests.api.conftest import Answer, Api
from tests.servers import eventually

PROBLEM = "application/problem+json"
MAX_BODY_BYTES = 4 * 1024 * 1024


@pytest.fixture
def app(broker: RedisBroker, database_url: str) -> Any:
    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int, many: list[int] | None = None) -> None: ...

    @dramatiq.actor(broker=broker, actor_name="plain")
    def plain(**anything: Any) -> None: ...

    return build_app(broker, History(engine_for(database_url), broker))


@pytest.fixture
def api(app: Any, serve: Callable[[Any], Api]) -> Api:
    return serve(app)


def post(api: Api, body: bytes | str, content_type: str = "application/json") -> Answer:
    return api.ask("POST", "/jobs", content=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(
    "body",
    [
        r'{"type": "\ud800"}',
        r'{"\ud800": 1}',
        r'{"type": "plain", "payload": {"self": 1}}',
        r'{"type": "plain", "payload": {"n": NaN}}',
        r'{"type": "plain", "payload": {"n": [{"a": -Infinity}]}}',
        r'{"type": "plain", "payload": {"text": "\udfff"}}',
        r'{"type": "plain", "payload": {"\ud800": 1}}',
        r'{"type": "count.up", "payload": {"n": "\ud800"}}',
        r'{"type": "count.up", "payload": {"\ud800": 1, "n": 1}}',
        '{"type": "plain", "payload": {"n": ' + "9" * 5000 + "}}",
        '{"type": "plain", "payload": {"n": ' + "[" * 5000 + "]" * 5000 + "}}",
        "[" * 100_000,
        "5",
    ],
)
def test_what_can_not_be_sent_is_refused_as_a_problem(api: Api, body: str) -> None:
    answer = post(api, body)
    assert (answer.status, answer.content_type) == (422, PROBLEM)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b'{"why": "\xff"}', b"{", b'"x"', b'{"why": "\\ud800"}'])
def test_an_act_whose_body_can_not_be_read_is_refused_as_any_other_request(api: Api, body: bytes) -> None:
    path = api.send().body["poll_url"]
    answer = api.ask("POST", f"{path}/cancel", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.body["type"]) == (422, "urn:callboard:problem:invalid-request")
    assert api.get(path).body["state"] == "pending"


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/schedules", f"/jobs/{UUID(int=1)}/cancel"])
def test_a_body_that_does_not_come_is_not_waited_for(api: Api, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(body_limit, "MOST_SECONDS", 0.3)
    host, _, port = api.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        )
        client.sendall(head.encode() + b'{"ty')
        answer = b"".join(iter(lambda: client.recv(65536), b""))  # until it is closed
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert PROBLEM.encode() in answer


@pytest.mark.parametrize("depth", range(150, 1000, 50))
def test_nesting_is_taken_or_refused_at_any_depth(api: Api, depth: int) -> None:
    for actor in ("plain", "count.up"):
        answer = post(api, f'{{"type": "{actor}", "payload": {{"n": {"[" * depth}{"]" * depth}}}}}')
        assert answer.status in (202, 422)


def test_a_plain_actor_takes_what_json_can_carry(api: Api) -> None:
    assert post(api, '{"type": "plain", "payload": {"args": 1, "kwargs": {}, "n": [1.5, null, "é"]}}').status == 202


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"])
def test_another_content_type_is_refused(api: Api, content_type: str) -> None:
    answer = post(api, '{"type": "count.up", "payload": {"n": 1}}', content_type)
    assert (answer.status, answer.body["errors"][0]["field"]) == (422, "body")


@pytest.mark.parametrize("path", ["/jobs/", "/healthz/", "/jobs/x/", "/nowhere"])
def test_another_path_is_not_found_and_leads_nowhere(api: Api, path: str) -> None:
    answer = api.get(path)
    assert (answer.status, answer.content_type) == (404, PROBLEM)


def test_an_error_nobody_thought_of_is_answered_without_internals_and_logged(
    app: Any, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr(app.state.history, "find", fail)
    with caplog.at_level(logging.ERROR):
        answer = api.get("/jobs/6a5e8c07-4a38-4b0e-9d0c-3d1f6f5d3c11")
    assert (answer.status, answer.content_type) == (500, PROBLEM)
    assert "secret" not in json.dumps(answer.body)
    # uvicorn logs it, after the answer.
    eventually(lambda: any("secret internals" in str((record.exc_info or [0, 0])[1]) for record in caplog.records))


def job_of(length: int) -> bytes:
    start, end = b'{"type": "plain", "payload": {"text": "', b'"}}'
    return start + b"a" * (length - len(start) - len(end)) + end


def test_a_body_is_bounded(api: Api) -> None:
    answer = post(api, job_of(MAX_BODY_BYTES))
    assert (answer.status, answer.body["errors"][0]["field"]) == (422, "payload.text")
    assert "the limit is 262144" in answer.body["errors"][0]["message"]
    assert post(api, job_of(256 * 1024)).status == 202
    answer = post(api, job_of(MAX_BODY_BYTES + 1))
    assert (answer.status, answer.content_type) == (413, PROBLEM)
    assert str(MAX_BODY_BYTES) in answer.body["detail"]


def test_a_body_without_a_length_is_bounded_while_it_is_read(api: Api) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head)
        for _ in range(MAX_BODY_BYTES // 0x10000 + 1):  # and no end
            connection.sendall(chunk)
        assert b" 413 " in connection.recv(1000).splitlines()[0]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "count.up", "payload": {"n": 1, **{f"k{number:06}": 1 for number in range(290_000)}}},
        {"type": "count.up", "payload": {"n": 1}, **{f"k{number:06}": 1 for number in range(290_000)}},
        {"type": "count.up", "payload": {"n": 1, "many": ["x"] * 800_000}},
    ],
    ids=["payload", "request", "list"],
)
def test_many_errors_are_counted_and_hold_nobody_up(api: Api, body: dict[str, Any]) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) <= MAX_BODY_BYTES
    answers: list[Answer] = []
    sender = threading.Thread(target=lambda: answers.append(post(api, content)))
    sender.start()
    waits: list[float] = []
    while sender.is_alive():
        waits.append(api.get("/healthz").seconds)
        time.sleep(0.02)
    [answer] = answers
    assert answer.status == 422
    assert len(answer.body["errors"]) <= 20
    assert len(json.dumps(answer.body)) < 10_000
    assert re.search("2900|2899|8000", answer.body["detail"]), "how many there are"
    assert max(waits) < 10, "a loaded machine, and no more"


def test_what_is_shown_again_is_bounded(api: Api) -> None:
    long = "x" * 100_000
    for body in ({"type": long}, {long: 1}, {"type": "count.up", "payload": {long: 1}}):
        answer = post(api, json.dumps(body))
        assert answer.status == 422
        assert len(json.dumps(answer.body)) < 2000
    assert len(json.dumps(api.get(f"/jobs/{'x' * 5000}").body)) < 1000


def test_twenty_errors_are_listed_and_the_others_counted(api: Api) -> None:
    answer = post(api, json.dumps({"type": "count.up", "payload": {f"k{number}": 1 for number in range(50)}}))
    assert len(answer.body["errors"]) == 20
    assert answer.body["errors_left_out"] == 31  # n is missing as well
    assert "and 31 more" in answer.body["detail"]
