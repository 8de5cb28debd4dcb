"""The public face for authors and producers: everything that a module of actors imports.

    from service.job import job

    @job(name="email.send", queue="email")
    def send_email(*, to: str, subject: str) -> dict[str, str]: ...

    send_email.send(to="ada@example.org", subject="Hello")

A job's payload is its function's keyword parameters, or one parameter annotated with a pydantic model. Both are checked
when the job is sent, in the sender's process, and a type checker checks the call.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from inspect import isasyncgenfunction, isgeneratorfunction, unwrap
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import dramatiq
from dramatiq.actor import Actor
from dramatiq.message import Message

from service.broker import broker
from service.broker.cancelled import Cancelled
from service.broker.lost import LeaseLost
from service.broker.message_checks import INHERITED, MOST_CHARACTERS
from service.broker.once import FIRST_RESULT, Scope, check_key
from service.broker.outgoing import collect, send_at_once
from service.durations import seconds_of
from service.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeclarationError,
    Declined,
    Expired,
    JobExists,
    NoteError,
    PayloadError,
    Permanent,
    RetryAfter,
    Snooze,
    SoftTimeLimit,
    TooManyFollowUps,
)
from service.middleware.context import JobContext, current_job_or_none
from service.middleware.defaults import WrongOptions
from service.middleware.option_names import check_send_options, naming_options
from service.middleware.unique import Unique
from service.payload import KeyTemplate, PayloadContract, PayloadVersions, Personal, Upgrade
from service.queues import Backoff, policy_of
from service.settings import get_settings

__all__ = [
    "AuthenticationFailed",
    "Backoff",
    "BrokerUnavailable",
    "Cancelled",
    "Declined",
    "Expired",
    "Job",
    "JobContext",
    "JobExists",
    "LeaseLost",
    "NoteError",
    "PayloadError",
    "Permanent",
    "Personal",
    "RetryAfter",
    "Snooze",
    "SoftTimeLimit",
    "TooManyFollowUps",
    "Unique",
    "current_job",
    "get_settings",
    "job",
    "send_at_once",
]

#: What authors call these options, which are in milliseconds, as Dramatiq's are.
_WORDS = {"soft_time_limit": "soft_timeout", "time_limit": "timeout", "expires_ms": "expires"}

P = ParamSpec("P")
R = TypeVar("R")


class Job(Actor[P, R]):
    """A Dramatiq actor whose payload is checked. `send`, `message`, `send_with_options` and calls work as there."""

    #: Makes a job's idempotency key of its payload's JSON.
    key_of: Callable[[dict[str, Any]], str | None] | None = None
    #: Makes its unique key.
    unique_of: Callable[[dict[str, Any]], str | None] | None = None
    #: Its call returns what the function returns, also where that has only begun.
    leaves_thread = True

    def __init__(self, fn: Callable[P, R], **declaration: Any) -> None:
        self.contract = PayloadContract.of(fn, declaration["actor_name"])
        #: Where the payload has had earlier versions.
        self.versions: PayloadVersions | None = declaration.get("options", {}).get("payload_versions")
        options = declaration["options"]
        self.key_of = self._maker("idempotency_key", options.pop("idempotency_key", None))
        self.unique_of = self._maker("unique_key", options.pop("unique_key", None))
        super().__init__(fn, **declaration)

    def message_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Message[R]:
        """Build a message whose arguments are one JSON object. Raises PayloadError."""
        if options:
            check_send_options(self.actor_name, options, self.broker.actor_options)
        return self._message(self.contract.dump(args, kwargs or {}), options)

    def message_from_json(self, document: object, **options: Any) -> Message[R]:
        """Build a message from a JSON object that came from outside. Raises PayloadError."""
        return self._message(self.contract.parse(document), options)

    def _message(self, payload: dict[str, Any], options: dict[str, Any]) -> Message[R]:
        if self.versions:
            options = {**options, "payload_version": self.versions.current}
        if context := current_job_or_none():
            options = {**context.inherited, "parent_id": context.job_id, **options}
        for name in INHERITED & options.keys():
            if not isinstance(options[name], str) or len(options[name]) > MOST_CHARACTERS:
                raise WrongOptions(f"{self.actor_name}: {name} must be text of up to {MOST_CHARACTERS} characters")
        for option, key_of in self._makers():
            if key_of and option not in options:
                options[option] = self._key(option, key_of, payload)
        return cast("Any", super()).message_with_options(kwargs=payload, **options)

    def _maker(self, option: str, key: object) -> Callable[[dict[str, Any]], str | None] | None:
        if isinstance(key, str):
            return KeyTemplate.of(key, self.contract, option).fill
        if key is None or callable(key):
            return cast("Any", key)
        raise DeclarationError(f"{self.contract.actor_name}: {option}={key!r} must be text or a function")

    def _key(self, option: str, key_of: Callable[[dict[str, Any]], str | None], payload: dict[str, Any]) -> str | None:
        try:
            key = key_of(payload)
        except PayloadError:
            raise
        except Exception as error:
            problem = f"its function has failed: {type(error).__name__}: {error}"
            raise PayloadError(self.actor_name, [(option, problem)]) from error
        check_key(key, self.actor_name, option)  # before a batch or a delay comes between
        return key

    def keys_for(self, payload: dict[str, Any]) -> dict[str, str | None]:
        """Return the options with the keys that the actor makes of a payload's JSON. Raises PayloadError."""
        return {option: self._key(option, key_of, payload) for option, key_of in self._makers() if key_of}

    def _makers(self) -> Iterator[tuple[str, Callable[[dict[str, Any]], str | None] | None]]:
        yield "idempotency_key", self.key_of
        yield "unique_key", self.unique_of

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function: with JSON where the worker calls, with what it declares where code calls it."""
        context = current_job_or_none()
        if context is None or context.actor != self.actor_name or not context.awaits_call:
            return super().__call__(*args, **kwargs)
        context.awaits_call = False
        if self.versions:
            document = self.versions.upgrade(self.contract.document_of(args, kwargs), context.payload_version)
            loaded_args, loaded_kwargs = self.contract.load((), document)
        else:
            loaded_args, loaded_kwargs = self.contract.load(args, kwargs)
        with collect(context.follow_ups):
            return cast("Any", super()).__call__(*loaded_args, **loaded_kwargs)


class _Declare(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Job[P, R]: ...


@naming_options
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
    soft_timeout: float | None = None,
    timeout: float | None = None,
    isolation: Literal["thread", "process"] = "thread",
    memory_limit_mb: int | None = None,
    expires: float | str | None = None,
    version: int = 1,
    upgrades: Mapping[int, Upgrade] | None = None,
    max_payload_bytes: int | None = None,
    idempotency_key: str | Callable[[dict[str, Any]], str | None] | None = None,
    idempotency_ttl: str | float | None = None,
    idempotency_scope: Scope = "queue",
    duplicate_result: Any = FIRST_RESULT,
    remember_failure: bool = False,
    unique: Unique | None = None,
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
    soft_timeout: seconds after which SoftTimeLimit is raised in the job, once, for it to clean up.
    timeout: seconds after which the job is ended and fails: as soon as it returns to Python, or at once with
        isolation="process".
    isolation: where the function runs: in a thread of the worker, or alone in a process, which a limit can kill.
    memory_limit_mb: MiB that this process may have, all that it has imported included; beyond it is a MemoryError.
    expires: how long a job may wait from its send until it runs: seconds, or a text such as "90s", "15m", "1h", "2d".
        What has waited for longer fails as Expired.
    version: of the payload, raised with each change that is more than a new field with a default.
    upgrades: by version, what makes the next version's payload of one: a function from JSON to JSON.
    max_payload_bytes: the largest payload, as JSON, in place of CALLBOARD_MAX_PAYLOAD_BYTES.
    settle_at_once: whether an outcome is in Redis before the thread takes its next job. A crash then repeats no job of
        this actor that has ended, and each waits for a round trip.
    idempotency_key: of jobs with the same key in a queue, one takes effect. A text with fields of the payload in
        braces, such as `email:{to}:{ref_id}`, or a function of the payload's JSON. No key where a field is None.
    idempotency_scope: whether a key counts in the actor's queue, or in all ("global"), among the actors that say so:
        then each start takes a round trip more, and who meets a job of another queue looks again after 1 to 15 s.
    idempotency_ttl: for how long after its success a key's further jobs are duplicates: seconds, or text such as "24h".
    duplicate_result: the result of duplicates, in place of the first job's own.
    remember_failure: whether a job that has died keeps its key as well: duplicates then die too.
    unique: what becomes of a send while a job with the same unique key has not ended: by default JobExists.

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
    if version != 1 or upgrades:
        options["payload_versions"] = PayloadVersions(name, version, upgrades or {})
    if max_attempts is not None:
        if max_attempts < 1:
            raise DeclarationError(f"{name}: max_attempts={max_attempts} is less than 1, the first run")
        options["max_retries"] = max_attempts - 1
    scope = None if idempotency_scope == "queue" else idempotency_scope
    keyed = _given(idempotency_ttl=idempotency_ttl, idempotency_scope=scope, remember_failure=remember_failure or None)
    if duplicate_result is not FIRST_RESULT:
        keyed["duplicate_result"] = duplicate_result
    if keyed and idempotency_key is None:
        raise DeclarationError(f"{name}: {', '.join(keyed)} has no effect without an idempotency_key")
    options |= {"idempotency_key": idempotency_key, **keyed} if idempotency_key is not None else {}
    if unique is not None:
        options |= _given(unique_key=unique.key, unique_window=unique.window)
        options |= {"unique_on_conflict": unique.on_conflict, "unique_states": unique.states}
    options |= _milliseconds(name, soft_time_limit=soft_timeout, time_limit=timeout, expires_ms=expires)
    options |= _given(isolation=isolation, memory_limit_mb=memory_limit_mb, max_payload_bytes=max_payload_bytes)
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


def _given(**options: Any) -> dict[str, Any]:
    return {option: value for option, value in options.items() if value is not None}


def _milliseconds(name: str, **durations: float | str | None) -> dict[str, int]:
    return {
        option: int(seconds_of(value, f"{name}: {_WORDS[option]}") * 1000)
        for option, value in _given(**durations).items()
    }


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
