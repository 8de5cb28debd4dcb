"""Whether and when a failed job runs again: a pure function of the error, the attempt and the policy."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dramatiq.errors import Retry

from service.errors import RetryAfter, Snooze
from service.middleware.error_kinds import is_final, type_of_error
from service.queues import MAX_DELAY_SECONDS


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """max_attempts: runs in all. Delays in milliseconds, min_delay_ms <= max_delay_ms.

    retry_when: decides in place of max_attempts, by the number of retries so far and the error.
    """

    max_attempts: int
    min_delay_ms: int
    max_delay_ms: int
    throws: tuple[type_of_error, ...] = ()
    retry_when: Callable[[int, BaseException], object] | None = None
    factor: float = 2.0
    #: Spreads the retries of jobs that failed together; never makes a wait shorter than stated.
    jitter: float = 0.1
    retry_for: tuple[type_of_error, ...] = ()
    permanent_for: tuple[type_of_error, ...] = ()

    def never_retries(self, error: BaseException) -> bool:
        """Whether this error is final, however many attempts are left."""
        if isinstance(error, self.throws) or _attribute(error, "is_final") is True:
            return True
        return is_final(error, self.retry_for, self.permanent_for)


def delay_before_next_attempt(
    error: BaseException, attempt: int, policy: RetryPolicy, random_source: random.Random
) -> int | None:
    """Return the milliseconds to wait before the next attempt, or None where there is to be none.

    `attempt` is the one that failed, 1 for the first. The delay grows with each attempt, up to the policy's cap. In its
    place comes what the actor asks for by RetryAfter or Dramatiq's Retry. Any other error may have an attribute
    `retry_after` in seconds: then the delay is not shorter.
    """
    if policy.never_retries(error):
        return None
    if not (policy.retry_when(attempt - 1, error) if policy.retry_when else attempt < policy.max_attempts):
        return None
    if isinstance(error, Retry) and error.delay is not None:
        return _bounded_ms(error.delay)
    if isinstance(error, RetryAfter):
        return _bounded_ms(error.retry_after * 1000)
    delay_ms = min(_stated_ms(attempt, policy), policy.max_delay_ms)
    jitter_ms = random_source.uniform(0, policy.jitter) * delay_ms
    delay_ms = min(math.ceil(delay_ms + jitter_ms), int(policy.max_delay_ms))
    asked = _attribute(error, "retry_after")
    return max(delay_ms, _bounded_ms(asked * 1000)) if type(asked) in (int, float) else delay_ms


def snooze_ms(error: Snooze) -> int:
    """Return the milliseconds for which a job asks to be left alone."""
    return _bounded_ms(error.seconds * 1000)


def _stated_ms(attempt: int, policy: RetryPolicy) -> float:
    try:
        return policy.min_delay_ms * policy.factor ** (attempt - 1)
    except OverflowError:
        return math.inf if policy.min_delay_ms else 0


def _bounded_ms(asked: float) -> int:
    return math.ceil(min(max(0, asked), MAX_DELAY_SECONDS * 1000))


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a foreign class may do anything
        return None
