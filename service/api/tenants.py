"""For whom a request sends: a key of a tenant for its own, any other for whom it names."""

from typing import Any
from urllib.parse import quote

from dramatiq.message import Message

from service.access.keys import check_text
from service.access.scopes import Caller
from service.broker.messages import copy_message
from service.errors import InvalidRequest

#: Options of a message by which jobs are told to be the same one.
KEYS = ("idempotency_key", "unique_key")


def tenant_of(named: str | None, caller: Caller) -> str | None:
    """Return for whom a job is to be sent; None for nobody in particular. Raises InvalidRequest."""
    if named is None:
        return caller.tenant
    if caller.tenant is not None:
        raise InvalidRequest([("tenant", "this key sends for its own tenant: leave it out")])
    return check_text("tenant", named)


def for_tenant(message: Message[Any], tenant: str) -> Message[Any]:
    """Return a message as one of a tenant.

    Its keys are the tenant's own: else one tenant's job would end as the duplicate of another's, with its result, or
    be refused with the other's id.
    """
    options: dict[str, Any] = {"tenant": tenant}
    for name in KEYS:
        if key := message.options.get(name):
            options[name] = f"tenant:{quote(tenant, safe='')}:{key}"
    return copy_message(message, options=options)
