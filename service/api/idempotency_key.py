"""The header `Idempotency-Key` of a request, within the tenant and the route that it was sent for."""

import json
from typing import NamedTuple

from fastapi import Request

from service.access.scopes import Caller
from service.errors import InvalidRequest

HEADER = "Idempotency-Key"
MOST_CHARACTERS = 255
#: Its keys without a tenant are kept as they came: releases before this one knew no other.
FIRST_ROUTE = "POST /jobs"


class IdempotencyKey(NamedTuple):
    """A key as a client has chosen it; the same text of another tenant, or for another route, is another key."""

    text: str
    tenant: str | None = None
    route: str = FIRST_ROUTE

    @property
    def scoped(self) -> str:
        """Return one text for all three."""
        if self.tenant is None and self.route == FIRST_ROUTE:
            return self.text
        # No text of the first kind holds a line break.
        return "\n" + json.dumps([self.route, self.tenant, self.text])


def key_of(request: Request, route: str, caller: Caller) -> IdempotencyKey | None:
    """Return the key of a request, or None where it has none. Raises InvalidRequest."""
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest([(HEADER, "must be given once")])
    key = given[0]
    if not (0 < len(key) <= MOST_CHARACTERS and key.isascii() and key.isprintable()):
        raise InvalidRequest([(HEADER, f"must be 1 to {MOST_CHARACTERS} printable ASCII characters")])
    return IdempotencyKey(key, caller.tenant, route)
