"""Runs a suspect alone in a process: a job that may be what killed a worker can then kill nothing but itself.

Whatever a worker held when it died is a suspect. Alone, the culprit is proved, and the bystanders finish and are
cleared. The hooks of the chain run in the worker as always; only the actor's function runs in the child.
"""

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from threading import get_ident
from typing import Any, cast

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware, TimeLimit

from service.broker.lost import LeaseLost
from service.broker.redis_broker import DEFAULT_MAX_DELIVERIES, RedisBroker
from service.middleware.context import JobContext, current_job_or_none
from service.middleware.defaults import WrongOptions
from service.middleware.isolated_process import RemoteError, run_alone

#: How long a process may take to start before it counts as the job's own time.
START_MS = 120_000


class Isolation(Middleware):
    """Wraps every actor's function when it is declared."""

    @property
    def actor_options(self) -> set[str]:
        return {"max_deliveries"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        most = actor.options.setdefault("max_deliveries", DEFAULT_MAX_DELIVERIES)
        if not isinstance(most, int) or most < 1:
            raise WrongOptions(f"{actor.actor_name}: max_deliveries={most!r} must be a whole number, 1 or more")
        actor.fn = _alone_where_suspect(actor, actor.fn)


def _alone_where_suspect(actor: Actor[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        context = current_job_or_none()
        if context is None or context.suspect is None or context.actor != actor.actor_name:
            return function(*args, **kwargs)
        return _run_alone(actor, function, context)

    return run


def _run_alone(actor: Actor[..., Any], function: Callable[..., Any], context: JobContext) -> Any:
    request = pickle.dumps((function.__module__, sys.path, context.suspect, context.attempt))
    context.suspect = None
    limits = [middleware for middleware in actor.broker.middleware if isinstance(middleware, TimeLimit)]

    def limit_to(milliseconds: float) -> None:
        for limit in limits:
            cast("Any", limit).manager.add_timeout(get_ident(), milliseconds)

    def on_ready() -> None:
        assert isinstance(actor.broker, RedisBroker)
        if context.lease and not actor.broker.begin(context.lease):
            raise LeaseLost
        limit_to(context.time_limit_ms)

    limit_to(context.time_limit_ms + START_MS)
    answer = run_alone(request, on_ready, fresh=context.is_last_delivery)
    succeeded, value, failure = pickle.loads(answer)  # noqa: S301 - our own child's
    if succeeded:
        return value
    if isinstance(value, bool):
        raise RemoteError(failure, is_final=value)
    with suppress(Exception):  # it may have no place for it
        value.failure_in_child = failure
    raise value
