"""Whether this process reaches Redis: what the readiness probe asks, and what the log says of an outage."""

import logging
import random
import time
from dataclasses import dataclass, field
from math import inf
from threading import Lock

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass
class Link:
    """The state of the connection, shared by all consumers of a process. Thread-safe.

    It is up when each consumer that started has fetched since its last failure, or had no slot to fetch for.
    """

    where: str
    _failures: dict[str, int] = field(default_factory=dict[str, int])
    _waiting: set[str] = field(default_factory=set[str])
    _last_logged: float = -inf
    _lock: Lock = field(default_factory=Lock)

    def consumer_started(self, queue: str) -> None:
        """A consumer will fetch from this queue."""
        with self._lock:
            self._waiting.add(queue)

    def succeeded(self, queue: str) -> None:
        """A fetch was answered."""
        with self._lock:
            self._waiting.discard(queue)
            if self._failures.pop(queue, 0) and not self._failures:
                self._last_logged = -inf
                logger.info("Redis at %s answers again", self.where)

    def not_needed(self, queue: str) -> None:
        """A consumer has no slot to fetch for. That says nothing against the connection; a failure before it stands."""
        with self._lock:
            if queue not in self._failures:
                self._waiting.discard(queue)

    def failed(self, queue: str, error: Exception) -> float:
        """A fetch failed. Returns the seconds to wait before the next one."""
        with self._lock:
            self._waiting.add(queue)
            self._failures[queue] = failures = self._failures.get(queue, 0) + 1
            # The power is bounded: after an hour's outage it would be no float any more.
            delay = min(FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 10), MAX_DELAY_SECONDS) * random.uniform(0.75, 1)  # noqa: S311
            # All consumers of a process fail together: one line speaks for them.
            if time.monotonic() - self._last_logged > MAX_DELAY_SECONDS:
                self._last_logged = time.monotonic()
                logger.error("Redis at %s can't be reached (%s); trying again in %.1f s", self.where, error, delay)
            return delay

    @property
    def is_up(self) -> bool:
        """Whether every consumer's last fetch was answered."""
        with self._lock:
            return not self._waiting
