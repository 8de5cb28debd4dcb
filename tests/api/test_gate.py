"""The gate: every route has a row in the table, and no other way leads to it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import Scope as Asked
from starlette.websockets import WebSocketDisconnect

from service.access.scopes import Caller, Scope
from service.api.app import build_app
from service.api.gate import Gate
from service.api.routes import ADMIN, OPEN, READ, ROUTES, TENANTS_READ, Page
from service.api.rules import Rules, check_all_routes_have_rules, path_of, routes_of
from service.broker import RedisBroker
from service.errors import DeclarationError, NotAuthenticated
from service.state.database import engine_for
from service.state.history import History

JOB = "6a5e8c07-4a38-4b0e-9d0c-3d1f6f5d3c11"


async def nobody(scope: Asked, *, again: bool = False) -> Caller:
    raise NotAuthenticated("no key")


@pytest.fixture
def app(broker: RedisBroker, database_url: str) -> Any:
    return build_app(broker, History(engine_for(database_url), broker), authenticate=nobody)


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_the_table_has_a_row_for_every_route_and_no_other(app: FastAPI) -> None:
    assert set(routes_of(app)) == set(ROUTES)


@pytest.mark.parametrize(("method", "template"), sorted(ROUTES))
def test_no_route_is_reached_without_a_key_but_the_open_ones(client: TestClient, method: str, template: str) -> None:
    path = re.sub(r"\{\w+(:\w+)?\}", JOB, template)
    answer = client.request(method, path)
    if ROUTES[method, template].scope is None:
        assert answer.status_code in (200, 503)
        return
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="callboard"'
    assert answer.headers["content-type"] == "application/problem+json"


def test_only_probes_are_open() -> None:
    probes = {"/healthz", "/readyz", "/ready"}
    assert {path for (_, path), rule in ROUTES.items() if rule.scope is None} <= probes


def test_a_route_without_a_row_stops_the_start_and_is_not_reached(app: FastAPI, client: TestClient) -> None:
    @app.get("/secret")
    async def secret() -> str:
        return "secret"

    assert client.get("/secret").status_code == 404
    with pytest.raises(DeclarationError, match=r"no row in service/api/routes.py: GET /secret"):
        check_all_routes_have_rules(app, ROUTES)


@pytest.mark.parametrize(
    "path", ["//jobs", "/JOBS", "/jobs%0a", "/jobs/..", "/./jobs", "/jobs;x", f"/jobs/{JOB}/x", "/jobs/a%2fb"]
)
def test_another_spelling_of_a_path_leads_to_nothing(client: TestClient, path: str) -> None:
    assert client.request("POST", path).status_code in (401, 404, 405)
    assert client.request("GET", path).status_code in (401, 404, 405)


def test_another_method_is_refused_with_those_that_are_taken(client: TestClient) -> None:
    answer = client.delete("/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert client.head("/docs").status_code == 401
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/jobs"):
        pass
    assert closed.value.code == 1008


@pytest.mark.parametrize("place", ["/place", "/jobs", "/jobs/"])
def test_a_mounted_application_is_guarded_as_any_other(app: FastAPI, place: str) -> None:
    client = TestClient(Starlette(routes=[Mount(place, app)]))
    place = place.rstrip("/")
    assert client.get(f"{place}/healthz").status_code == 200
    assert client.get(f"{place}/jobs").status_code == client.get(f"{place}/docs").status_code == 401
    for path in ("", "/", "/nothing", f"{place}/jobs"):
        assert client.get(f"{place}{path}").status_code in (401, 404), path
    assert client.get("/healthz").status_code == 404


@pytest.mark.parametrize("root", ["", "/", "/a", "/a/", "/jobs", "/jobs/x", "a"])
@pytest.mark.parametrize("path", ["/jobs", "/a/jobs", "/ab/jobs", "/a", "/a/", "/a//jobs", "/jobs/jobs", "jobs"])
def test_the_gate_and_the_router_look_at_one_path(root: str, path: str) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "root_path": root}
    _, found = Route("/{rest:path}", lambda: None).matches(scope)
    assert path_of(scope) == f"/{found['path_params']['rest']}" if found else path_of(scope) in ("", "jobs")


def test_where_several_routes_fit_all_their_rules_are_met() -> None:
    rules = Rules({("GET", "/a/{x}"): READ, ("GET", "/a/all"): ADMIN, ("GET", "/b/{rest:path}"): OPEN})
    assert set(rules.of("GET", "/a/all")) == {READ, ADMIN}
    assert rules.of("GET", "/a/one") == (READ,)
    assert rules.of("HEAD", "/b/c/d") == (OPEN,)
    assert rules.of("POST", "/a/one") == ()


async def inner(scope: Asked, receive: Any, send: Any) -> None:
    caller: Caller = scope["state"]["caller"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": caller.name.encode()})


def gate_for(caller: Caller, public: frozenset[Page] = frozenset()) -> TestClient:
    async def authenticate(scope: Asked, *, again: bool = False) -> Caller:
        return caller

    table = {("GET", "/mine"): TENANTS_READ, ("GET", "/all"): READ, ("DELETE", "/all"): ADMIN, **ROUTES}
    return TestClient(Gate(inner, table, authenticate, public))


def test_a_missing_scope_is_named_and_admin_has_all() -> None:
    client = gate_for(Caller("a", frozenset({Scope.SUBMIT, Scope.OPERATE})))
    answer = client.get("/all")
    assert answer.status_code == 403
    assert answer.json()["scope"] == "read"
    assert "read" in answer.json()["detail"]
    reader = gate_for(Caller("a", frozenset({Scope.READ})))
    assert (reader.get("/all").status_code, reader.delete("/all").status_code) == (200, 403)
    assert gate_for(Caller("a", frozenset({Scope.ADMIN}))).delete("/all").text == "a"


def test_a_key_of_a_tenant_reaches_only_what_is_made_for_tenants() -> None:
    client = gate_for(Caller("a", frozenset({Scope.ADMIN}), tenant="acme"))
    assert client.get("/mine").status_code == 200
    answer = client.get("/all")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:callboard:problem:not-for-tenants")


def test_a_page_is_opened_by_a_setting() -> None:
    stranger = Caller("a", frozenset())
    assert gate_for(stranger).get("/docs").status_code == 403
    assert gate_for(stranger, frozenset({Page.DOCS})).get("/docs").text == "anybody"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/ready"])
def test_a_probe_may_ask_for_the_head_only(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
