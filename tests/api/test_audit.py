"""The audit log: every act is written down before it is done, or is not done."""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.state.database import engine_for
from tests.api.access import Guarded, guarded


@pytest.fixture
def api(broker: RedisBroker, database_url: str) -> Iterator[Guarded]:
    with guarded(broker, database_url) as api:
        yield api


def test_an_act_is_written_down_with_who_what_how_many_and_why(api: Guarded) -> None:
    key, token = api.key("operate", "admin", name="ada")
    answer = api.ask("POST", "/acts?dry=1", token, json={"why": "too many", "filter": {"x": 1}})
    assert answer.status_code == 200
    [line] = api.log.page()
    assert (line.who, line.key_id, line.what, line.why) == ("ada", key.key_id, "POST /acts", "too many")
    assert (line.count, line.filter, line.status) == (3, {"queue": "email"}, 200)
    assert line.ended_at is not None
    assert line.ended_at >= line.begun_at
    assert line.request_id == answer.headers["x-request-id"]
    assert api.done == ['{"why":"too many","filter":{"x":1}}'], "the route reads the whole body"


def test_the_reason_may_be_a_header_and_the_request_have_a_name(api: Guarded) -> None:
    _, token = api.key("admin")
    headers = [
        (b"Authorization", f"Bearer {token}".encode()),
        (b"X-Reason", "größer\x01".encode()),
        (b"X-Request-Id", b"req-1"),
    ]
    assert api.client.delete("/acts/a%0Ab", headers=headers).status_code == 200  # type: ignore[arg-type]
    [line] = api.log.page()
    assert (line.why, line.request_id) == ("größer\x01", "req-1")
    assert line.what == "DELETE /acts/a\nb"
    api.ask("DELETE", "/acts/x", token, headers={"X-Request-Id": "no good; drop", "X-Reason": "x" * 5000})
    line = api.log.page(limit=1)[0]
    assert line.request_id != "no good; drop"
    assert len(line.why) <= 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[1]",
        b'{"filter": NaN, "why": 7}',
        b'{"filter": {"a": 1e999}}',
        b'{"filter": "\\u0000", "why": "\\u0000\\ud800"}',
        b'{"filter": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"filter": "' + b"x" * 10_000 + b'"}',
    ],
    ids=["empty", "broken", "bytes", "list", "nan", "infinite", "nul", "deep", "long"],
)
def test_no_body_keeps_an_act_out_of_the_log(api: Guarded, body: bytes) -> None:
    _, token = api.key("operate")
    assert api.ask("POST", "/acts", token, content=body).status_code == 200
    [line] = api.log.page()
    assert line.status == 200


def test_a_body_that_is_too_long_is_refused_before_anything(api: Guarded) -> None:
    _, token = api.key("operate")
    answer = api.ask("POST", "/acts", token, content=b" " * (4 * 1024 * 1024 + 1))
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert (api.done, api.log.page()) == ([], [])


def test_an_act_that_can_not_be_written_down_is_not_done(api: Guarded, database_url: str) -> None:
    _, token = api.key("operate")
    assert api.ask("POST", "/acts", token).status_code == 200
    with engine_for(database_url).begin() as connection:
        connection.execute(text("ALTER TABLE callboard_audit RENAME TO elsewhere"))
    answer = api.ask("POST", "/acts", token)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:callboard:problem:audit-unavailable")
    assert len(api.done) == 1


def test_an_act_whose_end_is_not_known_stays_without_one(
    api: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = api.key("operate")

    def fail(*_: object, **__: object) -> None:
        raise HistoryUnavailable("gone")

    monkeypatch.setattr(api.log, "end", fail)
    assert api.ask("POST", "/acts", token).status_code == 200
    [line] = api.log.page()
    assert (line.ended_at, line.status) == (None, None)
    assert "The end of an act can't be written down" in caplog.text


def test_acts_that_fail_are_there_with_how_they_ended(api: Guarded) -> None:
    _, token = api.key("admin")
    assert api.ask("POST", "/acts", token, content=b"fail").status_code == 503
    assert api.ask("DELETE", "/acts/boom", token).status_code == 500
    assert [line.status for line in api.log.page()] == [500, 503]


def test_what_is_refused_or_only_read_or_sent_is_no_act(api: Guarded) -> None:
    _, token = api.key("submit", "read")
    api.send(token)
    assert api.ask("POST", "/acts", token).status_code == 403
    assert api.ask("POST", "/acts", None).status_code == 401
    assert api.ask("GET", "/docs", token).status_code == 200
    assert api.log.page() == []


def test_the_log_is_read_in_pages_that_skip_and_repeat_nothing(api: Guarded) -> None:
    _, token = api.key("admin", name="ada")
    _, other = api.key("admin", name="bob")
    for number in range(7):
        api.ask("DELETE", f"/acts/{number}", token if number % 2 else other)
    seen: list[str] = []
    cursor, pages = "", 0
    while pages < 10:
        page = api.ask("GET", f"/audit?limit=3{cursor}", token).json()
        seen += [line["what"] for line in page["lines"]]
        pages += 1
        api.ask("DELETE", f"/acts/late-{pages}", token)
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == [f"DELETE /acts/{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    assert {line["who"] for line in api.ask("GET", "/audit?who=bob", token).json()["lines"]} == {"bob"}
    for wrong in ("cursor=x", "cursor=-1", "cursor=99999999999999999999", "limit=0", "limit=201"):
        assert api.ask("GET", f"/audit?{wrong}", token).status_code == 422
