"""Whether and when a failed job runs again: a pure function of the error, the attempt and the policy."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from dramatiq.errors import Retry

from service.errors import PayloadError, Permanent
from service.queues import MAX_DELAY_SECONDS

#: Errors that no repetition can mend.
NEVER_RETRIED: tuple[type[BaseException], ...] = (Permanent, PayloadError)

#: Spreads the retries of jobs that failed together; never makes a wait shorter than stated.
JITTER = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """max_attempts: runs in all. Delays in milliseconds, min_delay_ms <= max_delay_ms.

    retry_when: decides in place of max_attempts, by the number of retries so far and the error.
    """

    max_attempts: int
    min_delay_ms: int
    max_delay_ms: int
    throws: tuple[type[BaseException], ...] = ()
    retry_when: Callable[[int, BaseException], object] | None = None

    def never_retries(self, error: BaseException) -> bool:
        """Whether this error is final, however many attempts are left."""
        return isinstance(error, (*NEVER_RETRIED, *self.throws)) or _says_so(error)


def delay_before_next_attempt(
    error: BaseException, attempt: int, policy: RetryPolicy, random_source: random.Random
) -> int | None:
    """Return the milliseconds to wait before the next attempt, or None where there is to be none.

    `attempt` is the one that failed, 1 for the first. The delay doubles with each attempt, up to the policy's cap.
    """
    if policy.never_retries(error):
        return None
    if not (policy.retry_when(attempt - 1, error) if policy.retry_when else attempt < policy.max_attempts):
        return None
    if isinstance(error, Retry) and error.delay is not None:
        return int(min(max(0, error.delay), MAX_DELAY_SECONDS * 1000))
    # Past 2 to the power of 40 every delay is over any cap, and a larger power would only cost time.
    delay_ms = min(policy.min_delay_ms * 2 ** min(attempt - 1, 40), policy.max_delay_ms)
    jitter_ms = random_source.uniform(0, JITTER) * delay_ms
    return int(min(delay_ms + jitter_ms, policy.max_delay_ms))


def _says_so(error: BaseException) -> bool:
    try:
        return getattr(error, "is_final", None) is True
    except Exception:  # noqa: BLE001 - a foreign class may do anything
        return False
