"""Renews the leases of a process, from a thread of its own: however long a job runs, its lease does not end.

A job whose lease was lost all the same (the process was paused, or Redis was away for longer than the lease) runs
elsewhere by now. It can settle nothing any more, and is interrupted so that its effects end soon.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Event, Thread

import redis

from service.broker.delivery import Lease
from service.broker.holdings import Holdings
from service.broker.lost import LeaseLost

#: After a round that was not answered: a lease may be near its end.
AGAIN_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Renewal:
    """Renews all leases every third of their length."""

    def __init__(
        self,
        holdings: Mapping[str, Holdings],
        renew: Callable[[str, list[Lease]], list[str]],
        interval_seconds: float,
    ) -> None:
        self._holdings = holdings
        self._renew = renew
        self._interval_seconds = interval_seconds
        self._stop = Event()

    def start(self) -> None:
        """Renew until stopped."""
        self._stop = Event()
        Thread(target=self._run, args=(self._stop,), name="lease-renewal", daemon=True).start()

    def stop(self) -> None:
        """Renew no more."""
        self._stop.set()

    def renew_all(self) -> bool:
        """Renew each queue's leases in one call. Returns whether all answered: else the next round comes soon."""
        answered = True
        for queue, holdings in list(self._holdings.items()):
            if not holdings.all():
                continue
            try:
                self.renew_queue(queue)
            except redis.RedisError as error:
                logger.warning("Leases can't be renewed now: %s", error, extra={"queue": queue})
                answered = False
        return answered

    def renew_queue(self, queue: str) -> None:
        """Renew the leases of one queue. Raises redis.RedisError."""
        holdings = self._holdings[queue]
        for delivery in holdings.lose(self._renew(queue, holdings.all())):
            if delivery.interrupt(LeaseLost):
                logger.warning("The lease was lost: the job is interrupted", extra={"job_id": delivery.message_id})

    def _run(self, stop: Event) -> None:
        wait_seconds = self._interval_seconds
        while not stop.wait(wait_seconds):
            try:
                answered = self.renew_all()
            except Exception:
                # Without this thread every job of the process would be started elsewhere too.
                logger.exception("Renewing the leases has failed")
                answered = False
            wait_seconds = self._interval_seconds if answered else min(self._interval_seconds, AGAIN_SECONDS)
