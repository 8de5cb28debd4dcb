"""Names an option that `@job` does not have, and the one that is meant."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from service.errors import DeclarationError

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
