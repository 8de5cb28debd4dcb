"""How a worker stops: it drains, its jobs have the rest of its grace period, and what outlives that is interrupted."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dramatiq.middleware import Shutdown

from service.broker.grace import grace_seconds_of, working_seconds_of
from service.queues import policy_of
from service.settings import get_settings

if TYPE_CHECKING:
    from service.broker.delivery import Delivery
    from service.broker.working import Working

#: For the threads that wait for nothing to end, also when the grace period is over.
LEAST_MS = 500

logger = logging.getLogger(__name__)


class Stop:
    """Begins with the first word, `callboard drain` or SIGTERM, whichever comes first; the others change nothing."""

    def __init__(self, broker: "Working", release_unstarted: Callable[[], None]) -> None:
        self._broker = broker
        self._release_unstarted = release_unstarted
        self._lock = threading.Lock()
        self._grace_seconds = 0.0
        self._ends_at = 0.0
        self._alarm: threading.Timer | None = None

    def reset(self, queues: Iterable[str]) -> None:
        """A worker of these queues starts."""
        self._grace_seconds = grace_seconds_of(queues, get_settings().grace_seconds)
        self._broker.draining = False
        self._ends_at = 0.0
        working = working_seconds_of(self._grace_seconds)
        for queue in queues:
            if (limit := policy_of(queue).time_limit_seconds) > working:
                logger.warning(
                    "A job of %s may run for %g s. When this worker stops, it has %g s of CALLBOARD_GRACE_SECONDS=%g: "
                    "one that takes longer is interrupted then, and starts again elsewhere",
                    *(queue, limit, working, self._grace_seconds),
                )

    def drain(self) -> None:
        """Start nothing more, give back what has not started, and let run what runs.

        The process goes on until it gets SIGTERM. What has outlived the grace period by then is interrupted.
        """
        if self._begin():
            self._alarm = threading.Timer(self.seconds_left, self.interrupt)
            self._alarm.daemon = True
            self._alarm.start()

    def stop_in_time(self, stop: Callable[..., None], timeout: float = 600_000) -> None:
        """Stop the worker, by its own method, within what is left of the grace period."""
        self._begin()
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        self._ends_at = min(self._ends_at, time.monotonic() + timeout / 1000)
        stop(timeout=max(int(self.seconds_left * 1000), LEAST_MS))

    def interrupt(self) -> "list[Delivery]":
        """Interrupt what runs, each job once. Returns what was, and has not ended since."""
        with self._lock:
            for delivery in self._running():
                if not delivery.handed_back and delivery.interrupt(Shutdown, hand_back=True):
                    logger.warning(
                        "The grace period is over: the job is interrupted", extra={"job_id": delivery.message_id}
                    )
        return [delivery for delivery in self._running() if delivery.handed_back]

    @property
    def seconds_left(self) -> float:
        """How long running jobs may still go on, once the worker drains: 0 before that."""
        return max(self._ends_at - time.monotonic(), 0.0)

    @property
    def held(self) -> int:
        """How many jobs this process holds: they run, or their outcomes are not settled."""
        return sum(len(holdings.all()) for holdings in list(self._broker.holdings.values()))

    @property
    def running(self) -> int:
        """How many jobs run."""
        return len(self._running())

    def _running(self) -> "list[Delivery]":
        return [delivery for holdings in list(self._broker.holdings.values()) for delivery in holdings.running()]

    def _begin(self) -> bool:
        with self._lock:
            if self._broker.draining:
                return False
            self._ends_at = time.monotonic() + working_seconds_of(self._grace_seconds)
            # In this order: who is called after its last look passes the call on, and is not called from then on.
            self._broker.draining = True
        self._broker.wakeups.stop()
        self._broker.presence.changed()
        self._release_unstarted()
        logger.info("Draining: nothing more is started, and running jobs have %.0f s", self.seconds_left)
        for middleware in self._broker.middleware:
            if when_draining := getattr(middleware, "when_draining", None):
                when_draining(self._broker)
        return True
