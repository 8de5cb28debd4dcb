"""Carries out the retry policy: the retry is one of the outcomes that the broker settles, so it can't be lost.

Takes the options of Dramatiq's own Retries, so that plain actors keep their meaning: max_retries, min_backoff,
max_backoff, throws, retry_when, on_retry_exhausted; and backoff_factor, backoff_jitter, retry_for, permanent_for.
"""

import logging
import random
from inspect import signature, unwrap
from traceback import walk_tb
from typing import Any, cast

from dramatiq import middleware as stock
from dramatiq.actor import Actor
from dramatiq.broker import Broker, MessageProxy
from dramatiq.errors import RateLimitExceeded, Retry
from dramatiq.message import Message
from dramatiq.middleware import MiddlewareError, TimeLimitExceeded

from service.broker import RedisBroker
from service.broker.cancelled import Cancelled
from service.broker.delivery import Delivery
from service.broker.outcome import BY_ITSELF, Crashed, Dead, Failure, Reason, RetryLater, Snoozed
from service.errors import JobError, PayloadError, Snooze
from service.middleware.defaults import WrongOptions
from service.middleware.isolated_process import ProcessDied
from service.middleware.retry_policy import RetryPolicy, delay_before_next_attempt, snooze_ms

logger = logging.getLogger(__name__)

LOGGED_CHARACTERS = 500
NUMBERS = {"max_retries", "min_backoff", "max_backoff"}


class Retries(stock.Retries):
    """Decides after each failure between another attempt and death.

    By its class it is Dramatiq's: `add_middleware(..., before=dramatiq.middleware.Retries)` finds its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def actor_options(self) -> set[str]:
        return {*super().actor_options, "backoff_factor", "backoff_jitter", "retry_for", "permanent_for"}

    def before_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        if not message.options:
            return
        for name in NUMBERS & message.options.keys():
            value = message.options[name]
            if not _is_fit(value):
                raise WrongOptions(f"{message.actor_name}: {name}={value!r} must be a number, 0 or more")

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is None:
            return
        assert isinstance(broker, RedisBroker)
        assert isinstance(message, Delivery)
        if message.is_cancelled or isinstance(exception, Cancelled):
            # Whatever else went wrong with it: nothing is tried again, and nobody is told of a failure.
            message.outcome = BY_ITSELF
            return
        if isinstance(exception, ProcessDied):
            logger.warning("The job killed its process", extra={"job_id": message.message_id, "error": str(exception)})
            crash = Failure("crashed", str(exception), "")
            if message.lease.lapses + 1 < message.lease.max_deliveries:
                message.outcome = Crashed(crash)
            else:
                message.fail()
                message.outcome = Dead(crash, Reason.CRASHED)
            return
        if isinstance(exception, Snooze):
            message.outcome = Snoozed(message.copy_unchanged(), snooze_ms(exception))
            return
        failure = Failure.of(exception)
        actor = broker.get_actor(message.actor_name)
        policy = _policy_for(message, actor.options)
        never_fits = isinstance(exception, PayloadError) or _never_fits(actor, message, exception)
        is_in_vain = never_fits or policy.never_retries(exception)
        delay_ms = None
        if not is_in_vain:
            delay_ms = delay_before_next_attempt(exception, message.attempt, policy, self._random)
        fields = {
            "job_id": message.message_id,
            "attempt": message.attempt,
            "error": f"{failure.type}: {failure.message}"[:LOGGED_CHARACTERS],
        }
        if delay_ms is None:
            logger.warning("The job failed for good", extra=fields, exc_info=_unless_meant(exception))
            message.fail()
            message.outcome = Dead(failure, Reason.INVALID if never_fits else _reason_of(exception))
            if not is_in_vain:
                _tell_of_exhaustion(broker, message, policy)
        else:
            more = {**fields, "delay_ms": delay_ms}
            logger.warning("The job failed and will be tried again", extra=more, exc_info=_unless_meant(exception))
            retry = message.copy_for_retry(failure.traceback)
            message.outcome = RetryLater(retry, delay_ms, failure)
            _announce(broker, retry, delay_ms)


def _reason_of(error: BaseException) -> Reason:
    return Reason.TIMED_OUT if isinstance(error, TimeLimitExceeded) else Reason.FAILED


def _announce(broker: RedisBroker, retry: Message[Any], delay_ms: int) -> None:
    # Dramatiq promises middleware the hooks of `enqueue` for retries too. The one after it is called by the consumer.
    try:
        broker.emit_before("enqueue", retry, delay_ms)
    except MiddlewareError:
        logger.exception(
            "A middleware refuses a retry, which is stored all the same", extra={"job_id": retry.message_id}
        )


def _tell_of_exhaustion(broker: RedisBroker, message: Delivery, policy: RetryPolicy) -> None:
    options = {**broker.get_actor(message.actor_name).options, **message.options}
    if name := options.get("on_retry_exhausted"):
        retries = {"retries": message.attempt - 1, "max_retries": policy.max_attempts - 1}
        with broker.insisting():
            broker.get_actor(name).send(message.asdict(), retries)


def _never_fits(actor: Actor[..., Any], message: Delivery, error: BaseException) -> bool:
    """Say whether the arguments are not those of the function, which no repetition can mend."""
    if not isinstance(error, TypeError):
        return False
    own = getattr(unwrap(actor.fn), "__code__", None)
    if any(frame.f_code is own for frame, _ in walk_tb(error.__traceback__)):
        return False  # it has been called: the error is of its own making
    try:
        signature(actor.fn).bind(*message.args, **message.kwargs)
    except TypeError:
        return True
    except ValueError:
        pass  # a function of C that shows no signature
    return False


def _unless_meant(error: BaseException) -> BaseException | None:
    # What an actor raises on purpose says enough without a traceback.
    return None if isinstance(error, JobError | Retry | RateLimitExceeded) else error


def _is_fit(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0


def _policy_for(message: Delivery, actor_options: dict[str, Any]) -> RetryPolicy:
    # What a sender outside of our control wrote is passed over where it is no number.
    own = {name: value for name, value in message.options.items() if name not in NUMBERS or _is_fit(value)}
    options: dict[str, Any] = {**actor_options, **own}
    throws: Any = options.get("throws") or ()
    return RetryPolicy(
        max_attempts=options["max_retries"] + 1,
        min_delay_ms=options["min_backoff"],
        max_delay_ms=options["max_backoff"],
        retry_when=actor_options.get("retry_when"),
        factor=actor_options["backoff_factor"],
        jitter=actor_options["backoff_jitter"],
        retry_for=actor_options.get("retry_for", ()),
        permanent_for=actor_options.get("permanent_for", ()),
        throws=cast("tuple[type[BaseException], ...]", throws if isinstance(throws, tuple) else (throws,)),
    )
