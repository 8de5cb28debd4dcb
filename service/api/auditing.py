"""Writes operators' acts into the audit log, in one place for all routes: see `service.access.audit`.

A route hands over what only it knows by `audited(request, count=..., filter=...)`. The reason is the header `X-Reason`,
or the member `why` of a JSON body; the member `filter` of the body, or the query, is the filter until the route says
better.
"""

import json
import logging
import re
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs
from uuid import uuid4

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.audit import Act, AuditLog
from service.access.scopes import Caller
from service.api.lines import Line
from service.api.problems import answer_of, http_error
from service.errors import AuditUnavailable, CallboardError, HistoryUnavailable

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(slots=True)
class _Known:
    """What a route says of its act."""

    count: int | None = None
    filter: Any = None


def audited(request: Request, *, count: int | None = None, filter: Any = None) -> None:
    """Say, in a route, how many were meant and by which filter (anything that has a JSON form)."""
    known: _Known | None = getattr(request.state, "audited", None)
    if known is not None:
        known.count, known.filter = count, filter


class Auditing:
    """ASGI middleware, inside of what bounds a body. Does acts that the gate has let pass as such."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log
        self._line = Line(4, HistoryUnavailable)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (scope["type"] == "http" and scope["state"].get("is_act")):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive)
        except HTTPException as error:
            await (await http_error(Request(scope), error))(scope, receive, send)
            return
        if body is None:
            return  # the client has left before it had said what to do
        act = _act_of(scope, body)
        try:
            number = await self._line.run(self._log.begin, act)
        except CallboardError as error:
            logger.error("An act was refused, since it can't be written down: %s", error, extra={"what": act.what})
            await (await answer_of(Request(scope), AuditUnavailable()))(scope, receive, send)
            return
        await self._do(number, act, scope, _again(body, receive), send)

    async def _do(self, number: int, act: Act, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope["state"]["audited"] = _Known()

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", act.request_id.encode())]}
                # Before the answer: who reads the log after it finds how the act ended.
                await self._end(number, message["status"], known, act)
            await send(message)

        try:
            await self._app(scope, receive, send_completed)
        except Exception:
            await self._end(number, 500, known, act)
            raise

    async def _end(self, number: int, status: int, known: _Known, act: Act) -> None:
        try:
            await self._line.run(lambda: self._log.end(number, status, count=known.count, filter=known.filter))
        except CallboardError as error:
            facts = {"line": number, "who": act.who, "what": act.what, "status": status, "count": known.count}
            logger.error("The end of an act can't be written down: %s", error, extra=facts)


def _act_of(scope: Scope, body: bytes) -> Act:
    caller: Caller = scope["state"]["caller"]
    headers = Headers(scope=scope)
    members = _members(body)
    given_id = headers.get("x-request-id", "")
    reason = _utf8(headers["x-reason"]) if "x-reason" in headers else members.get("why", "")
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return Act(
        who=caller.name,
        key_id=caller.key_id,
        tenant=caller.tenant,
        what=f"{scope['method']} {scope['path']}",
        filter=members.get("filter") or query or None,
        why=reason if isinstance(reason, str) else "",
        request_id=given_id if _REQUEST_ID.fullmatch(given_id) else str(uuid4()),
    )


async def _read(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _members(body: bytes) -> dict[str, Any]:
    try:
        document: object = json.loads(body, parse_constant=str) if body else {}
    except (ValueError, RecursionError):
        return {}  # the route says what is wrong with it
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _utf8(header: str) -> str:
    # Headers are read as Latin-1; what people type is UTF-8.
    return header.encode("latin-1").decode("utf-8", errors="replace")
