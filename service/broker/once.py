"""Idempotency keys: what a worker tells Redis of a key, and what becomes of a job whose key is taken for good.

Who holds a key is decided by fetch.lua and settle.lua: see `scripts/common.lua`.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from dramatiq.actor import Actor

from service.broker import events
from service.broker.delivery import Lease
from service.broker.outcome import Failure, Reason, succeeded
from service.broker.settlement import Settlement, dead
from service.errors import PayloadError

MOST_CHARACTERS = 512
#: How long a key stays taken after a success, where the actor is silent.
DEFAULT_TTL_SECONDS = 24 * 3600.0

#: Where a key counts.
Scope = Literal["queue", "global"]
SCOPES: tuple[Scope, ...] = ("queue", "global")

#: As an actor's answer to duplicates: the result of the first job.
FIRST_RESULT: Any = object()


def check_key(key: object, actor_name: str, option: str = "idempotency_key") -> str:
    """Return a key, empty for None. Raises PayloadError where it can't be one."""
    if key is None:
        return ""
    if not isinstance(key, str):
        problem = f"must be text or None, not {type(key).__name__}"
    elif not key or not key.isprintable():
        problem = f"must be printable text, and not empty: {key!r}"
    elif len(key) > MOST_CHARACTERS:
        problem = f"has {len(key)} characters, and the limit is {MOST_CHARACTERS}: {key!r}"
    else:
        return key
    raise PayloadError(actor_name, [(option, problem)])


def remembered(settlement: Settlement, options: Mapping[str, Any]) -> Settlement:
    """Return a settlement that keeps the key which its delivery holds, for as long as the actor's options say."""
    if settlement.outcome == "done" or (settlement.outcome == "dead" and options.get("remember_failure")):
        return settlement._replace(keep_ms=kept_ms(options))
    return settlement


def is_wide(actor: Actor[..., Any] | None) -> bool:
    """Whether the keys of an actor count in all queues."""
    return actor is not None and actor.options.get("idempotency_scope") == "global"


def kept_ms(options: Mapping[str, Any]) -> int:
    """Return for how long the jobs of an actor keep their keys."""
    return int(options.get("idempotency_ttl", DEFAULT_TTL_SECONDS) * 1000)


def duplicate(
    lease: Lease, actor: str, record: bytes, options: Mapping[str, Any], origin: Mapping[str, str]
) -> Settlement:
    """End a job as the first one of its key has ended, without a run.

    `record` is `done|failed UNTIL JOB_ID EVENT`; `origin` has tenant and parent of this job.
    """
    word, _, _, event = record.decode(errors="replace").split(" ", 3)
    first: dict[str, str] = json.loads(event)
    if word == "failed":
        reason = Reason(first.get("reason", Reason.FAILED))
        event = events.ended(lease, "dead", actor, reason=reason, error=first["error"], skipped="true", **origin)
        return dead(lease, actor, Failure(**json.loads(first["error"])), reason)._replace(event=event)
    answer = options.get("duplicate_result", FIRST_RESULT)
    result = first["result"] if answer is FIRST_RESULT else succeeded(answer).result
    event = events.ended(lease, "succeeded", actor, result=result, skipped="true", **origin)
    return Settlement(lease, "done", event)
