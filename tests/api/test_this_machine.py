"""An API without keys answers its own machine only, and does not start where others could reach it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Scope

from service.access.open_mode import check_may_listen, is_loopback_host
from service.api.app import create_app
from service.api.this_machine import OnlyThisMachine, why_not
from service.errors import SettingsError
from service.settings import load_settings

ROOT = Path(__file__).parents[2]
HERE = ("127.0.0.1", 5000)


def request(*headers: tuple[str, str], client: Any = HERE, server: Any = ("127.0.0.1", 8000)) -> Scope:
    named = [(name.encode(), value.encode()) for name, value in headers]
    return {"type": "http", "client": client, "server": server, "headers": named}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "[::1]"])
def test_a_request_of_this_machine_is_answered(host: str) -> None:
    assert why_not(request(("host", host))) is None
    assert why_not(request(("host", host), ("origin", "http://localhost:3000"))) is None
    assert why_not(request(("host", host), client=("::1", 1, 0, 0), server=("::1", 8000, 0, 0))) is None
    assert why_not(request(("host", host), client=("::ffff:127.0.0.1", 1))) is None


@pytest.mark.parametrize(
    "scope",
    [
        request(("host", "evil.example")),
        request(("host", "localhost.evil.example")),
        request(("host", "127.0.0.1.evil.example")),
        request(("host", "127.0.0.1@evil.example")),
        request(("host", "localhost:80:80")),
        request(("host", "localhost#.evil.example")),
        request(("host", "10.0.0.1")),
        request(("host", "0.0.0.0")),
        request(("host", "2130706433")),
        request(("host", "")),
        request(),
        request(("host", "localhost"), ("host", "evil.example")),
        request(("host", "localhost"), ("origin", "https://evil.example")),
        request(("host", "localhost"), ("origin", "null")),
        request(("host", "localhost"), ("origin", "http://localhost@evil.example")),
        request(("host", "localhost"), ("origin", "http://[")),
        request(("host", "localhost"), ("x-forwarded-for", "127.0.0.1")),
        request(("host", "localhost"), ("forwarded", "for=127.0.0.1")),
        request(("host", "localhost"), ("x-forwarded-host", "localhost")),
        request(("host", "localhost"), ("via", "1.1 proxy")),
        request(("host", "localhost"), client=("10.0.0.7", 5000)),
        request(("host", "localhost"), server=("10.0.0.1", 8000)),
        request(("host", "localhost"), client=None),
        request(("host", "localhost"), server=("/run/api.sock", None)),
    ],
    ids=lambda scope: " ".join(value.decode() for _, value in scope["headers"]) or "no Host",
)
def test_any_other_is_refused(scope: Scope) -> None:
    assert why_not(scope) is not None


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], database_url: str) -> pytest.MonkeyPatch:
    monkeypatch.setenv("DATABASE_URL", database_url)
    return monkeypatch


def test_the_open_application_refuses_strangers_and_holds_keys_to_their_scopes(variables: pytest.MonkeyPatch) -> None:
    app = create_app()
    with TestClient(app) as stranger:
        answer = stranger.get("/healthz")
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:callboard:problem:not-from-here")
    here: Any = TestClient(ServedHere(app), base_url="http://127.0.0.1:8000", client=HERE)
    with here as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/audit").json() == {"lines": [], "cursor": None}
        assert client.get("/audit", headers={"Authorization": "Bearer cb_x"}).status_code == 401


class ServedHere:
    """Has the server's address as uvicorn gives it: the test client gives the name in the URL."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await self._app(scope | {"server": ("127.0.0.1", 8000)} if scope["type"] == "http" else scope, receive, send)


def test_with_keys_the_application_asks_everybody(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("CALLBOARD_API_ACCESS", "keys")
    variables.setenv("CALLBOARD_API_PUBLIC", "docs")
    app = create_app()
    assert not any(one.cls is OnlyThisMachine for one in app.user_middleware)  # type: ignore[comparison-overlap]
    with TestClient(app) as client:
        assert client.get("/healthz", headers={"X-Forwarded-For": "1.2.3.4"}).status_code == 200
        assert client.get("/docs").status_code == 200
        assert client.post("/jobs", json={}).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "no.such.host.invalid", "example.com"])
def test_it_does_not_start_open_elsewhere_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert not is_loopback_host(host)
    with pytest.raises(SettingsError, match=r"CALLBOARD_API_ACCESS=keys.*callboard keys create.*API_HOST=127\.0\.0\.1"):
        check_may_listen(load_settings(), host)
    monkeypatch.setenv("CALLBOARD_API_ACCESS", "keys")
    check_may_listen(load_settings(), host)


def test_it_starts_open_on_loopback() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        check_may_listen(load_settings(), host)


@pytest.mark.parametrize("command", ["api", "up"])
def test_the_commands_refuse_before_they_listen(variables: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    environment = {**os.environ, "CALLBOARD_API_HOST": "0.0.0.0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", command],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert "CALLBOARD_API_ACCESS=keys" in done.stderr
