"""The public face for authors and producers: everything that a module of actors imports.

    from service.job import job

    @job(name="email.send", queue="email")
    def send_email(*, to: str, subject: str) -> dict[str, str]: ...

    send_email.send(to="ada@example.org", subject="Hello")

A job's payload is its function's keyword parameters, or one parameter annotated with a pydantic model. Both are checked
when the job is sent, in the sender's process, and a type checker checks the call.
"""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isasyncgenfunction, isgeneratorfunction, unwrap
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import dramatiq
from dramatiq.actor import Actor
from dramatiq.message import Message

from service.broker import broker
from service.errors import AuthenticationFailed, DeclarationError, Declined, Permanent, RetryAfter, Snooze
from service.middleware.context import JobContext, current_job_or_none
from service.payload import PayloadContract
from service.queues import Backoff, policy_of
from service.settings import get_settings

__all__ = [
    "AuthenticationFailed",
    "Backoff",
    "Declined",
    "Job",
    "JobContext",
    "Permanent",
    "RetryAfter",
    "Snooze",
    "current_job",
    "get_settings",
    "job",
]

P = ParamSpec("P")
R = TypeVar("R")


class Job(Actor[P, R]):
    """A Dramatiq actor whose payload is checked. `send`, `message`, `send_with_options` and calls work as there."""

    def __init__(self, fn: Callable[P, R], **declaration: Any) -> None:
        self.contract = PayloadContract.of(fn, declaration["actor_name"])
        super().__init__(fn, **declaration)

    def message_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Message[R]:
        """Build a message whose arguments are one JSON object. Raises PayloadError."""
        return self._message(self.contract.dump(args, kwargs or {}), options)

    def message_from_json(self, document: object) -> Message[R]:
        """Build a message from a JSON object that came from outside. Raises PayloadError."""
        return self._message(self.contract.parse(document), {})

    def _message(self, payload: dict[str, Any], options: dict[str, Any]) -> Message[R]:
        return cast("Any", super()).message_with_options(kwargs=payload, **options)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function: with JSON where the worker calls, with what it declares where code calls it."""
        context = current_job_or_none()
        if context is None or context.actor != self.actor_name or not context.awaits_call:
            return super().__call__(*args, **kwargs)
        context.awaits_call = False
        loaded_args, loaded_kwargs = self.contract.load(args, kwargs)
        return cast("Any", super()).__call__(*loaded_args, **loaded_kwargs)


class _Declare(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Job[P, R]: ...


def job(
    function: None = None,
    /,
    *,
    name: str,
    queue: str,
    aliases: Sequence[str] = (),
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    retry_for: Sequence[type[BaseException]] = (),
    permanent_for: Sequence[type[BaseException]] = (),
    on_dead: str | Actor[..., Any] | None = None,
    priority: int = 5,
    max_deliveries: int = 3,
    settle_at_once: bool = False,
) -> _Declare:
    """Declare an actor.

    name: dotted and written out, since messages outlive a renamed function: `email.send`.
    queue: a queue of the table in `service.queues`, whose policy holds where the actor is silent.
    aliases: further names that the actor answers to as a job type.
    max_attempts: runs in all, the first one included.
    backoff: how long to wait between attempts.
    retry_for: errors to try again; then others are final, but for those of connections and time-outs.
    permanent_for: errors to give up at. Of both, and of what is known of usual errors, the class nearest to the error
        decides.
    on_dead: an actor, or its name, that is called once when the job is a dead letter, whatever it died of.
    priority: 0 (first) to 9 (last) within the queue.
    max_deliveries: how often a job that kills its worker is started before it is a dead letter. 1 means that it runs in
        a process of its own from the first start on, and never twice.
    settle_at_once: whether an outcome goes to Redis by itself, before the thread takes its next job. A crash then
        repeats no job of this actor that has ended, and each pays for a round trip.

    Raises DeclarationError at import where any of it can't work.
    """
    if function is not None:
        raise DeclarationError('@job takes options: @job(name="email.send", queue="email")')
    if not name or not name.isprintable():
        raise DeclarationError(f"The name {name!r} must be printable text, such as email.send")
    policy_of(queue)
    options: dict[str, Any] = {"max_deliveries": max_deliveries, "settle_at_once": settle_at_once}
    if not 0 <= priority <= 9:
        raise DeclarationError(f"{name}: priority={priority} is outside of 0 (first) to 9 (last)")
    if max_deliveries < 1:
        raise DeclarationError(f"{name}: max_deliveries={max_deliveries} is less than 1, the first start")
    if max_attempts is not None:
        if max_attempts < 1:
            raise DeclarationError(f"{name}: max_attempts={max_attempts} is less than 1, the first run")
        options["max_retries"] = max_attempts - 1
    if backoff is not None:
        options["min_backoff"] = int(backoff.delay_seconds * 1000)
        options["max_backoff"] = int(backoff.cap_seconds * 1000)
        options["backoff_factor"] = backoff.factor
        options["backoff_jitter"] = backoff.jitter
    options |= {key: value for key, value in (("retry_for", retry_for), ("permanent_for", permanent_for)) if value}

    if on_dead is not None:
        options["on_dead"] = on_dead if isinstance(on_dead, str) else on_dead.actor_name

    def declare(fn: Callable[..., Any], /) -> Job[..., Any]:
        if isgeneratorfunction(fn) or isasyncgenfunction(fn):
            raise DeclarationError(f"{name}: a function with `yield` would return at once, its body never run")
        if broker.is_named(name):
            other = broker.get_actor(name).fn
            raise DeclarationError(f"Two actors are named {name!r}: {_place(other)} and {_place(fn)}")
        declare_actor = cast("Any", dramatiq.actor)
        try:
            declared: Job[..., Any] = declare_actor(
                fn, actor_class=Job, actor_name=name, queue_name=queue, priority=priority, broker=broker, **options
            )
            declared.priority = priority  # 0 is meant here, where a plain actor's 0 is silence
            for alias in aliases:
                broker.declare_alias(alias, declared)
        except DeclarationError as error:
            raise DeclarationError(f"{error} ({_place(fn)})") from error
        return declared

    return cast("_Declare", declare)


def _place(function: Callable[..., Any]) -> str:
    code = getattr(unwrap(function), "__code__", None)
    where = f", {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{function.__module__}.{function.__qualname__}{where}"


def current_job() -> JobContext:
    """Return the job that is running. Raises LookupError outside of one."""
    context = current_job_or_none()
    if context is None:
        raise LookupError("current_job() is only known inside a running job")
    return context
