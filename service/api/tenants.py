"""For whom a request sends: a key of a tenant for its own, any other for whom it names."""

from typing import Any

from dramatiq.message import Message

from service.access.keys import check_text
from service.access.scopes import Caller
from service.broker.messages import copy_message
from service.errors import InvalidRequest


def tenant_of(named: str | None, caller: Caller) -> str | None:
    """Return for whom a job is to be sent; None for nobody in particular. Raises InvalidRequest."""
    if named is None:
        return caller.tenant
    if caller.tenant is not None:
        raise InvalidRequest([("tenant", "this key sends for its own tenant: leave it out")])
    return check_text("tenant", named)


def for_tenant(message: Message[Any], tenant: str) -> Message[Any]:
    """Return a message as one of a tenant: its keys become the tenant's own where it is sent."""
    return copy_message(message, options={"tenant": tenant})
