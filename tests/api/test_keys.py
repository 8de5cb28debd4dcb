"""API keys over HTTP: which are taken, for how long, and what is said of the others."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from sqlalchemy import text

from service.api import followers
from service.api.authenticate import REFUSED
from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.state.database import engine_for
from tests.api.access import JOB, Guarded, guarded
from tests.api.conftest import Api
from tests.servers import eventually


@pytest.fixture
def api(broker: RedisBroker, database_url: str) -> Iterator[Guarded]:
    with guarded(broker, database_url) as api:
        yield api


def test_a_key_does_what_its_scopes_say_and_nothing_else(api: Guarded) -> None:
    _, submit = api.key("submit", name="submitter")
    _, read = api.key("read", name="reader")
    _, admin = api.key("admin", name="admin")
    sent = api.send(submit)
    assert sent.status_code == 202
    path = sent.json()["poll_url"]
    assert api.ask("GET", path, read).status_code == api.ask("GET", path, admin).status_code == 200
    refused = api.ask("GET", path, submit)
    assert (refused.status_code, refused.json()["scope"]) == (403, "read")
    assert api.send(read).json()["scope"] == "submit"
    assert api.ask("GET", "/docs", read).status_code == 200
    assert api.ask("GET", "/audit", read).json()["scope"] == "admin"


def headers_that_are_no_key(token: str) -> dict[str, list[tuple[bytes, bytes]]]:
    name, good = b"Authorization", b"Bearer " + token.encode()
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    return {
        "missing": [],
        "wrong secret": [(name, b"Bearer " + wrong.encode())],
        "unknown id": [(name, b"Bearer cb_" + b"0" * 16 + token[19:].encode())],
        "twice": [(name, good), (name, good)],
        "another and the right one": [(name, b"Basic eDp5"), (name, good)],
        "comma": [(name, good + b", " + good)],
        "basic": [(name, b"Basic " + token.encode())],
        "no scheme": [(name, token.encode())],
        "upper case": [(name, b"Bearer " + token.upper().encode())],
        "long": [(name, b"Bearer " + b"a" * 30_000)],
        "long and right at first": [(name, good + b"0" * 1000)],
        "unicode": [(name, b"Bearer " + "cb_ä☃".encode())],
        "full-width digits": [(name, good[:-1] + "\uff10".encode())],
        "two spaces": [(name, b"Bearer  " + token.encode())],
        "tab": [(name, b"Bearer\t" + token.encode())],
        "half": [(name, good[:50])],
        "sql": [(name, b"Bearer cb_' OR 1=1 --")],
        "nul": [(name, good + b"\x00")],
        "newline": [(name, good + b"\nX-Reason: x")],
        "as a query would be": [(b"X-Api-Key", token.encode())],
    }


@pytest.mark.parametrize("case", sorted(headers_that_are_no_key("cb_" + "0" * 16 + "_" + "0" * 64)))
def test_whatever_is_no_key_is_refused_and_not_repeated(
    api: Guarded, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    _, token = api.key("admin")
    headers = headers_that_are_no_key(token)[case]
    with caplog.at_level(logging.DEBUG):
        answer = api.client.post("/jobs", headers=headers, content=b"{")  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="callboard"'
    assert token[20:] not in answer.text + caplog.text
    assert "aaaa" not in answer.text


def test_the_scheme_is_taken_in_any_case(api: Guarded) -> None:
    _, token = api.key("submit")
    assert api.client.post("/jobs", json={}, headers={"Authorization": f"bEARER {token}"}).status_code == 422


def test_an_unknown_key_and_a_wrong_secret_are_told_apart_by_nothing(api: Guarded) -> None:
    """Same answer, same path: one look-up and two comparisons each, whatever is remembered of the key."""
    _, token = api.key("submit")
    assert api.send(token).status_code == 202
    wrong, unknown = f"{token[:-4]}0000", f"cb_{'0' * 16}{token[19:]}"
    looks: list[str] = []
    find = api.store.find

    def counted(presented: Any) -> Any:
        looks.append(presented.key_id)
        return find(presented)

    api.store.find = counted  # type: ignore[method-assign]
    assert api.send(wrong).json() == api.send(unknown).json()
    assert len(looks) == 2
    assert REFUSED in api.send(wrong).text
    assert api.send(token).status_code == 202
    assert len(looks) == 3, "a key that is known is not looked up"


def test_a_key_ends_at_its_time_by_the_database_clock(api: Guarded) -> None:
    _, token = api.key("submit", expires_in=timedelta(seconds=100))
    assert api.send(token).status_code == 202
    api.clock.now += 99.9  # of this process, from the first look on; the database has hardly gone on
    assert api.send(token).status_code == 202
    _, short = api.key("submit", name="short", expires_in=timedelta(seconds=1.5))
    assert api.send(short).status_code == 202
    api.clock.now += 1.4
    assert api.send(short).status_code == 202
    api.clock.now += 0.1
    assert api.send(short).status_code == 401
    time.sleep(1.6)
    assert api.send(short).status_code == 401, "also when it is asked for anew"
    _, past = api.key("submit", name="past", expires_in=timedelta(0))
    assert api.send(past).status_code == 401


def test_a_revoked_key_works_for_five_seconds_at_most(api: Guarded) -> None:
    key, token = api.key("submit")
    assert api.send(token).status_code == 202
    api.store.revoke(key.name)
    api.clock.now += 1.9
    assert api.send(token).status_code == 202, "not looked up yet"
    api.clock.now += 3.2
    assert api.send(token).status_code == 401
    assert api.send(token).status_code == 401


def test_what_a_revoked_key_has_begun_goes_on_no_longer(
    api: Guarded, serve: Callable[[Any], Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PING_SECONDS", 0.1)
    key, token = api.key("submit", "read", rate_per_second=0.01, burst=3)
    client = serve(api.app).client
    client.headers["Authorization"] = f"Bearer {token}"
    path = client.post("/jobs", json=JOB).json()["poll_url"]
    with ThreadPoolExecutor(1) as pool, client.stream("GET", f"{path}/events") as stream:
        waiting = pool.submit(client.get, f"{path}?wait=2")
        lines = stream.iter_lines()
        for _ in range(10):  # what is checked again is no further request
            assert next(lines) is not None
        api.store.revoke(key.name)
        api.clock.now += 5.1
        left = list(islice(lines, 100))
        assert len(left) < 100, "it ends"
        assert all(not line or line.startswith(":") for line in left)
        answer = waiting.result()
        assert (answer.status_code, answer.json()["type"]) == (401, "urn:callboard:problem:not-authenticated")


def test_a_key_in_use_is_checked_beside_its_requests(api: Guarded) -> None:
    key, token = api.key("submit")
    assert api.send(token).status_code == 202
    api.store.revoke(key.key_id)
    api.clock.now += 2.1
    api.send(token)
    eventually(lambda: api.send(token).status_code == 401, 5)


def test_a_rotated_key_has_two_secrets_for_the_grace_time(api: Guarded) -> None:
    key, old = api.key("submit")
    rotated = api.store.rotate(key.name, timedelta(seconds=50))
    assert rotated is not None
    new = rotated[1]
    assert rotated[0].key_id == key.key_id
    assert old != new
    assert [api.send(token).status_code for token in (old, new)] == [202, 202]
    api.clock.now += 1
    again = api.store.rotate(key.key_id, timedelta(0))
    assert again is not None
    api.clock.now += 6
    assert [api.send(token).status_code for token in (old, new, again[1])] == [401, 401, 202]


@pytest.fixture
def broken(api: Guarded, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the look-ups of keys fail, as without a server, until told otherwise."""
    real = engine_for("postgresql://nobody@127.0.0.1:1/none")

    class Outage:
        def begin(self) -> None:
            monkeypatch.setattr(api.store, "_engine", real)

        def end(self) -> None:
            monkeypatch.undo()

    return Outage()


def test_without_postgresql_a_key_seen_lately_works_and_others_are_not_called_wrong(api: Guarded, broken: Any) -> None:
    _, token = api.key("submit")
    _, unseen = api.key("submit", name="unseen")
    assert api.send(token).status_code == 202
    broken.begin()
    for _ in range(20):
        api.clock.now += 2.9
        assert api.send(token).status_code == 202
    answer = api.send(unseen)
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:callboard:problem:keys-unavailable"
    assert "127.0.0.1" not in answer.text, "a stranger hears nothing of the servers"
    assert int(answer.headers["retry-after"]) > 0
    assert api.ask("POST", "/jobs", "cb_nonsense").status_code == 401, "what can be no key needs no look-up"
    api.clock.now += 10
    assert api.send(token).status_code == 503, "60 s after it was last checked"
    broken.end()
    api.clock.now += 2
    assert api.send(token).status_code == 202


def test_a_key_that_was_revoked_in_an_outage_ends_soon_after_it(api: Guarded, broken: Any) -> None:
    key, token = api.key("submit")
    assert api.send(token).status_code == 202
    broken.begin()
    api.clock.now += 10
    assert api.send(token).status_code == 202
    broken.end()
    api.store.revoke(key.key_id)
    api.clock.now += 5.1
    assert api.send(token).status_code == 401


def test_a_key_asks_no_more_often_than_it_may(api: Guarded) -> None:
    _, token = api.key("submit", rate_per_second=2.0, burst=3)
    answers = [api.send(token) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 429, 429]
    assert answers[-1].headers["retry-after"] == "1"
    assert answers[-1].json()["type"] == "urn:callboard:problem:too-many-requests"
    api.clock.now += 0.5
    assert [api.send(token).status_code for _ in range(2)] == [202, 429]
    rotated = api.store.rotate("client", timedelta(hours=1))
    assert rotated is not None
    assert api.send(rotated[1]).status_code == 429, "both secrets share one bucket"
    api.clock.now += 1000
    assert [api.send(token).status_code for _ in range(4)] == [202, 202, 202, 429]


def test_a_rate_by_setting_holds_for_keys_without_their_own(broker: RedisBroker, database_url: str) -> None:
    with guarded(broker, database_url, rate_per_second=0.1) as api:
        _, token = api.key("submit")
        _, other = api.key("submit", name="other", rate_per_second=100.0)
        first, second = api.send(token), api.send(token)
        assert (first.status_code, second.status_code, second.headers["retry-after"]) == (202, 429, "10")
        assert {api.send(other).status_code for _ in range(20)} == {202}


def test_what_is_stored_holds_no_secret(api: Guarded, database_url: str) -> None:
    _, token = api.key("submit")
    with engine_for(database_url).connect() as connection:
        row = str(connection.execute(text("SELECT * FROM callboard_api_keys")).all())
    assert token[3:19] in row
    assert token[20:] not in row


def test_without_the_table_a_key_is_not_called_wrong(api: Guarded, database_url: str) -> None:
    _, token = api.key("submit")
    with engine_for(database_url).begin() as connection:
        connection.execute(text("DROP TABLE callboard_api_keys"))
    assert api.send(token).status_code == 503
    with pytest.raises(HistoryUnavailable):
        api.store.all()
