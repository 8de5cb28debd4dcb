"""Names an option that `@job` or a send does not have, and the one that is meant."""

import inspect
from collections.abc import Callable, Iterable, Set
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from service.errors import DeclarationError, PayloadError

P = ParamSpec("P")
R = TypeVar("R")

#: What others call them, by our name.
KNOWN_ELSEWHERE = {
    "max_attempts": ("retries", "max_retries", "max_tries", "retry", "attempts", "autoretry"),
    "backoff": ("min_backoff", "max_backoff", "retry_backoff", "retry_delay", "default_retry_delay"),
    "retry_for": ("autoretry_for", "retry_on", "retry_when"),
    "permanent_for": ("throws", "dont_autoretry_for", "discard_on"),
    "timeout": ("time_limit", "job_timeout", "hard_timeout"),
    "soft_timeout": ("soft_time_limit",),
    "expires": ("max_age", "ttl", "expires_ms"),
    "queue": ("queue_name",),
    "name": ("actor_name", "task_name"),
    "on_dead": ("on_failure", "on_retry_exhausted"),
    "idempotency_key": ("key", "idempotent", "dedup_key"),
    "unique": ("unique_for", "unique_key", "once", "deduplication"),
}
_MEANT = {theirs: ours for ours, names in KNOWN_ELSEWHERE.items() for theirs in names}

#: What a send calls them, by what `@job` or others do.
_MEANT_IN_SENDS = {
    "timeout": "time_limit, in ms",
    "soft_timeout": "soft_time_limit, in ms",
    "expires": "expires_ms",
    "max_attempts": "max_retries, which does not count the first run",
    **dict.fromkeys(("countdown", "eta", "defer_by", "delay_seconds", "delay_ms", "run_at"), "delay, in ms from now"),
}
#: What no middleware claims, and messages may have.
_OF_MESSAGES = frozenset(
    {
        "priority",
        "tenant",
        "traceparent",
        "parent_id",
        "payload_version",
        "schedule",
        "scheduled_for",
        "retries",
        "traceback",
    }
)
#: A name that is as much like one of ours is taken for it, and anything less for an option of somebody's middleware.
LIKENESS = 0.75


def check_send_options(actor_name: str, names: Iterable[str], claimed: Set[str]) -> None:
    """Refuse an option of a send that has no effect, where it can be told which is meant. Raises PayloadError."""
    for name in names:
        if name in claimed or name in _OF_MESSAGES:
            continue
        close = get_close_matches(name, ["delay", "priority", "tenant", "traceparent", *claimed], 1, LIKENESS)
        meant = _MEANT_IN_SENDS.get(name) or next(iter(close), name)
        if meant != name:
            raise PayloadError(actor_name, [(name, f"is no option of a send: use {meant}")])


def naming_options(declare: Callable[P, R]) -> Callable[P, R]:
    """Let a decorator's call raise a DeclarationError for an option that it does not have, or that it lacks."""
    parameters = inspect.signature(declare).parameters
    options = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    required = [name for name in options if parameters[name].default is inspect.Parameter.empty]

    @wraps(declare)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not args:
            actor = f"{kwargs['name']}: " if "name" in kwargs else ""
            for each in kwargs:
                if each not in options:
                    raise DeclarationError(f"{actor}@job has no option {each!r}{_instead_of(each, options)}")
            if missing := [name for name in required if name not in kwargs]:
                raise DeclarationError(f"{actor}@job needs {' and '.join(f'{name}=...' for name in missing)}")
        return declare(*args, **kwargs)

    return checked


def _instead_of(name: str, options: list[str]) -> str:
    meant = _MEANT.get(name) or next(iter(get_close_matches(name, options, 1)), None)
    if meant is None:
        return f": it has {', '.join(options)}"
    counts = ", which counts runs in all, the first one included" if meant == "max_attempts" else ""
    return f": use {meant}{counts}"
