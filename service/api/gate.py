"""The gate: every request passes it before it reaches the router, and nothing of its body is read until it has."""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.scopes import ANYBODY, Caller
from service.api.problems import answer_of, problem
from service.api.routes import Page, Rule
from service.api.rules import READING, Rules, path_of
from service.errors import CallboardError, MissingScope, NotForTenants


class Authentication(Protocol):
    """Finds out who a request comes from."""

    def __call__(self, scope: Scope, *, again: bool = False) -> Awaitable[Caller]:
        """Return the caller. Raises NotAuthenticated, KeysUnavailable, and TooManyRequests, which counts the request
        unless it is asked about `again`.
        """
        ...


async def anybody(scope: Scope, *, again: bool = False) -> Caller:
    """Ask nobody: for an application that is served to this machine or to a test only."""
    return ANYBODY


class Gate:
    """ASGI middleware. What has no row in the table is not there, whatever the router knows."""

    def __init__(
        self,
        app: ASGIApp,
        table: Mapping[tuple[str, str], Rule],
        authenticate: Authentication = anybody,
        public: frozenset[Page] = frozenset(),
    ) -> None:
        self._app = app
        self._rules = Rules(table)
        self._authenticate = authenticate
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)
        rules = self._rules.of(scope["method"], path)
        if not rules:
            await self._refuse(path)(scope, receive, send)
            return
        try:
            caller = await self._admit(scope, rules)
        except CallboardError as error:
            await (await answer_of(Request(scope), error))(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"] = caller
        state["admit_again"] = partial(self._admit, scope, rules, again=True)
        state["is_act"] = scope["method"] not in READING and any(rule.is_audited for rule in rules)
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, rules: tuple[Rule, ...], *, again: bool = False) -> Caller:
        asking = [rule for rule in rules if rule.scope is not None and rule.page not in self._public]
        if not asking:
            return Caller("anybody", frozenset())
        caller = await self._authenticate(scope, again=again)
        for rule in asking:
            assert rule.scope
            if not caller.has(rule.scope):
                raise MissingScope(rule.scope)
            if caller.tenant is not None and not rule.for_tenants:
                raise NotForTenants
        return caller

    def _refuse(self, path: str) -> ASGIApp:
        if methods := self._rules.methods_of(path):
            return problem(405, "method-not-allowed", "Method Not Allowed", {"Allow": ", ".join(methods)})
        return problem(404, "not-found", "Not Found")
