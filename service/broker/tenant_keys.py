"""The keys by which jobs are told to be the same one, within the tenant that a job works for.

Else one tenant's job would end as the duplicate of another's, with its result, or be refused with the other's id. Every
message passes here where its row is made, whoever sends it: a request, a job, a schedule or a producer.
"""

from typing import Any
from urllib.parse import quote

from dramatiq.message import Message

from service.broker.messages import copy_message
from service.broker.once import check_key

#: The options that hold them.
KEYS = ("idempotency_key", "unique_key")


def scoped_key(key: str, tenant: object) -> str:
    """Return a key as its tenant's own. One that is so already stays, and so does that of a job without a tenant."""
    if not isinstance(tenant, str) or not tenant:
        return key
    scope = _scope_of(tenant)
    return key if key.startswith(scope) else scope + key


def with_own_keys(message: Message[Any]) -> tuple[Message[Any], str, str]:
    """Return a message with its keys as they are stored, and the two: idempotency and unique key, empty for none.

    Raises PayloadError where one can't be a key. Its limit is that of the key alone, however long the tenant's name is.
    """
    options, keys = message.options, dict[str, str]()
    tenant = options.get("tenant")
    for name in KEYS:
        given = options.get(name)
        if isinstance(given, str) and isinstance(tenant, str):
            given = given.removeprefix(_scope_of(tenant))
        if key := check_key(given, message.actor_name, name):
            keys[name] = scoped_key(key, tenant)
    if any(keys[name] != options[name] for name in keys):
        message = copy_message(message, options=keys)
    return message, keys.get("idempotency_key", ""), keys.get("unique_key", "")


def _scope_of(tenant: str) -> str:
    # Half of a surrogate pair is text that a message can carry.
    return f"tenant:{quote(tenant, safe='', errors='surrogatepass')}:"
