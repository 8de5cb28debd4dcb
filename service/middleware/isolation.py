"""Runs an actor's function: in the thread of the worker, or alone in a process of its own.

A process is for what asks for it (`isolation="process"`), so that a limit can end it whatever it does, and for
suspects: a job that may be what killed a worker can then kill nothing but itself. Whatever a worker held when it died
is a suspect. Alone, the culprit is proved, and the bystanders finish and are cleared. The hooks of the chain run in the
worker as always; only the actor's function runs in the child.
"""

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import iscoroutinefunction, unwrap
from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware
from dramatiq.middleware.time_limit import TimeLimitExceeded

from service.broker.delivery import Delivery
from service.broker.lost import LeaseLost
from service.broker.redis_broker import RedisBroker
from service.broker.rows import DEFAULT_MAX_DELIVERIES
from service.middleware.answers import unpack
from service.middleware.context import JobContext, current_job_or_none
from service.middleware.defaults import WrongOptions
from service.middleware.event_loop import LEFT, begin_run, coroutine_function_of
from service.middleware.isolated_process import Interruption, RemoteError, Request, run_alone
from service.middleware.time_limit import EXCEEDED, TimeLimit

#: How long a process may take to start before it counts as the job's own time.
START_MS = 120_000
#: Python and the actors' imports alone take more.
LEAST_MEMORY_MB = 64


class Isolation(Middleware):
    """Wraps every actor's function when it is declared."""

    @property
    def actor_options(self) -> set[str]:
        return {"max_deliveries", "isolation", "memory_limit_mb"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        most = actor.options.setdefault("max_deliveries", DEFAULT_MAX_DELIVERIES)
        if not isinstance(most, int) or most < 1:
            raise WrongOptions(f"{actor.actor_name}: max_deliveries={most!r} must be a whole number, 1 or more")
        _check(actor)
        actor.fn = _bounded(actor, actor.fn)


def _check(actor: Actor[..., Any]) -> None:
    isolation = actor.options.get("isolation", "thread")
    if isolation not in ("thread", "process"):
        raise WrongOptions(f'{actor.actor_name}: isolation={isolation!r} must be "thread" or "process"')
    if isolation == "process" and iscoroutinefunction(unwrap(actor.fn)):
        raise WrongOptions(
            f'{actor.actor_name}: isolation="process" runs one job at a time in a process, where `async def` gains '
            "nothing: make it a plain function, which may call asyncio.run()"
        )
    limit = actor.options.get("memory_limit_mb")
    if limit is None:
        return
    if isolation != "process":
        raise WrongOptions(
            f'{actor.actor_name}: memory_limit_mb={limit!r} has no effect without isolation="process", '
            "since all threads of a worker share its memory"
        )
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < LEAST_MEMORY_MB:
        raise WrongOptions(
            f"{actor.actor_name}: memory_limit_mb={limit!r} must be a whole number of MiB, {LEAST_MEMORY_MB} or more"
        )


def _bounded(actor: Actor[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark where the function begins and ends: nothing may interrupt a thread outside of it."""
    is_isolated = actor.options.get("isolation") == "process"
    coroutine_function = coroutine_function_of(function)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        context = current_job_or_none()
        if context is None or context.delivery is None or context.actor != actor.actor_name:
            return function(*args, **kwargs)
        delivery, context.delivery = context.delivery, None
        if delivery.hooks and coroutine_function:
            assert isinstance(actor.broker, RedisBroker)
            if begin_run(actor.broker, delivery, coroutine_function, args, kwargs):
                return LEFT
        try:
            if is_isolated or delivery.lease.is_suspect:
                return _run_alone(actor, function, delivery, context)
            delivery.begin()
            delivery.check_cancelled()
            return function(*args, **kwargs)
        except TimeLimitExceeded as error:
            error.args = error.args or (EXCEEDED,)
            raise
        finally:
            delivery.runner = None
            if delivery.is_interrupted:
                try:
                    delivery.absorb()
                except BaseException:  # noqa: BLE001 - it has arrived here
                    delivery.absorb()

    if coroutine_function:
        vars(run)["leaves_thread"] = run
    return run


def _run_alone(actor: Actor[..., Any], function: Callable[..., Any], delivery: Delivery, context: JobContext) -> Any:
    broker, lease = actor.broker, delivery.lease
    assert isinstance(broker, RedisBroker)
    limits = next((each for each in broker.middleware if isinstance(each, TimeLimit)), None)
    hard_ms, soft_ms = limits.limits_of(broker, delivery) if limits else (0, None)

    def limit_to(milliseconds: float) -> None:
        if limits:
            limits.deadlines.start_clock(delivery, milliseconds)

    def on_ready() -> None:
        if lease.is_suspect and not broker.begin(lease):
            raise LeaseLost
        limit_to(hard_ms)

    interruption = Interruption()
    delivery.begin(interruption.ask)
    delivery.check_cancelled()
    request = Request(
        module=function.__module__,
        path=sys.path,
        message=delivery.encode(),
        lease=lease,
        inherited=context.inherited,
        soft_limit_seconds=None if soft_ms is None else soft_ms / 1000,
        memory_limit_mb=actor.options.get("memory_limit_mb"),
    )
    limit_to(hard_ms + START_MS)
    is_last_delivery = lease.is_suspect and lease.lapses + 1 >= lease.max_deliveries
    answer = run_alone(pickle.dumps(request), on_ready, interruption, fresh=is_last_delivery)
    succeeded, value, more = unpack(answer)
    if succeeded:
        context.follow_ups.all.extend(more)
        return value
    failure = more
    if isinstance(value, bool):
        raise RemoteError(failure, is_final=value)
    with suppress(Exception):  # it may have no place for it
        value.failure_in_child = failure
    raise value
