"""Applications that ask for keys, and keys for them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dramatiq
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from service.access.audit import AuditLog
from service.access.keys import ApiKey, KeyStore
from service.access.scopes import Scope
from service.api import app as application
from service.api.auditing import audited
from service.api.authenticate import KeyAuthentication
from service.api.routes import ADMIN, OPERATE, ROUTES
from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.job import Job, Unique
from service.state.database import engine_for
from service.state.history import History

JOB = {"type": "count.up", "payload": {"n": 1}}


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Guarded:
    """An application that asks for keys, with acts of its own: `POST /acts` is operate, `DELETE /acts/{name}` admin."""

    app: FastAPI
    client: TestClient
    store: KeyStore
    log: AuditLog
    clock: Clock
    done: list[str] = field(default_factory=list)

    def key(self, *scopes: str, name: str = "client", **more: Any) -> tuple[ApiKey, str]:
        return self.store.create(name, [Scope(scope) for scope in scopes], by="test", **more)

    def ask(self, method: str, path: str, token: str | None, **request: Any) -> Any:
        headers = dict(request.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.client.request(method, path, headers=headers, **request)

    def send(self, token: str | None, job: Any = JOB, **headers: str) -> Any:
        return self.ask("POST", "/jobs", token, json=job, headers=headers)


@contextlib.contextmanager
def guarded(broker: RedisBroker, database_url: str, **options: Any) -> Iterator[Guarded]:
    """Build the application as `create_app` does, on real servers, with a clock of the test's."""

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int) -> None: ...

    @dramatiq.actor(broker=broker, actor_name="only.one", actor_class=Job, **{"unique_key": Unique("one:{n}").key})
    def only(*, n: int) -> None: ...

    engine = engine_for(database_url)
    store, log, clock = KeyStore(engine), AuditLog(engine), Clock()
    options.setdefault("outage_seconds", 60)
    authenticate = KeyAuthentication(store, clock=clock, **options)
    rows = {("POST", "/acts"): OPERATE, ("DELETE", "/acts/{name}"): ADMIN}
    with with_routes(rows):
        app = application.build_app(
            broker, History(engine_for(database_url), broker), authenticate=authenticate, audit_log=log
        )
    done: list[str] = []

    @app.post("/acts")
    async def act(request: Request) -> dict[str, int]:
        done.append((await request.body()).decode("latin-1"))
        if "fail" in done[-1]:
            raise HistoryUnavailable("on purpose")
        audited(request, count=3, filter={"queue": "email"})
        return {"count": 3}

    @app.delete("/acts/{name}")
    async def remove(name: str) -> None:
        done.append(name)
        if name == "boom":
            raise RuntimeError("internals")

    with TestClient(app, raise_server_exceptions=False) as client:
        yield Guarded(app, client, store, log, clock, done)
    engine.dispose()


@contextlib.contextmanager
def with_routes(rows: Any) -> Iterator[None]:
    """Let the table have further rows while an application is built."""
    ROUTES.update(rows)
    try:
        yield
    finally:
        for row in rows:
            del ROUTES[row]


Guard = Callable[..., Guarded]
