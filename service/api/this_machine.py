"""What an API without keys refuses: other machines, proxies that ask for them, and pages of other sites.

A browser on this machine is a way in for any site. A site whose name is made to resolve to 127.0.0.1 (DNS rebinding)
sends its own name as Host; a form or script of another site sends its Origin.
"""

import re
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.open_mode import is_loopback_address
from service.api.problems import answer_of
from service.errors import NotFromHere

#: Set by proxies, for whoever they speak for.
FORWARDING = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")


class OnlyThisMachine:
    """ASGI middleware, outside of the gate: probes are refused as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (reason := why_not(scope)):
            error = NotFromHere(f"This API asks for no keys and answers its own machine only: {reason}")
            await (await answer_of(Request(scope), error))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def why_not(scope: Scope) -> str | None:
    """Return why a request is not one of this machine's own, or None."""
    for end in ("client", "server"):
        address = scope.get(end)
        if not address or not is_loopback_address(str(address[0])):
            return "the connection is not one of 127.0.0.1 or ::1"
    hosts: list[bytes] = []
    for name, value in scope["headers"]:
        if name in FORWARDING:
            return "the request has come through a proxy (CALLBOARD_API_ACCESS=keys lets it pass, with a key)"
        if name == b"host":
            hosts.append(value)
        elif name == b"origin" and not _is_own_origin(value):
            return "the header Origin names another site"
    if len(hosts) != 1 or not _is_own_name(hosts[0]):
        return "the header Host must be localhost, 127.0.0.1 or [::1]"
    return None


def _is_own_name(host: bytes) -> bool:
    found = _HOST.fullmatch(host.decode("latin-1"))
    if found is None:
        return False
    name = found[1].strip("[]")
    return name.lower() == "localhost" or is_loopback_address(name)


def _is_own_origin(origin: bytes) -> bool:
    try:
        parts = urlsplit(origin.decode("latin-1"))
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and _is_own_name(parts.netloc.encode("latin-1"))
