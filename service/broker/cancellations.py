"""Ends what is cancelled while this process holds it: a job that runs is interrupted, one that waits never starts.

Redis calls the process at once. Where that call is lost, a look each second finds the mark on the lease, as long as
there is anything to look for: a process that holds nothing asks nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread

import redis

from service.broker.cancelled import Cancelled
from service.broker.delivery import Delivery
from service.broker.holdings import Holdings

LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Cancellations:
    """Looks from a thread of its own. `have_cancelled` says of which queues something held is cancelled, by whomever
    it is held; `renew` learns what of it is held here, and calls `arrived`; `drop_unstarted` gives up what waits for
    a thread.
    """

    def __init__(
        self,
        holdings: Mapping[str, Holdings],
        have_cancelled: Callable[[Sequence[str]], list[str]],
        renew: Callable[[str], object],
        drop_unstarted: Callable[[], None],
    ) -> None:
        self._holdings = holdings
        self._have_cancelled = have_cancelled
        self._renew = renew
        self._drop_unstarted = drop_unstarted
        self._stop = Event()

    def start(self) -> None:
        """Look until stopped."""
        self._stop = Event()
        Thread(target=self._run, args=(self._stop,), name="cancellations", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def arrived(self, queue: str, entry: str, token: str) -> None:
        """End a delivery that is cancelled. Repeating it changes nothing."""
        running = self._holdings[queue].cancel(entry, token)
        if running is None:
            self._drop_unstarted()
        elif not running.is_cancelled:
            cancel_running(running)

    def _run(self, stop: Event) -> None:
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except redis.RedisError:
                pass  # the renewal says so
            except Exception:
                logger.exception("Looking for cancelled jobs has failed")

    def look(self) -> None:
        """Find what is cancelled of what is held here. Raises redis.RedisError."""
        if queues := [queue for queue, holdings in list(self._holdings.items()) if holdings.all()]:
            for queue in self._have_cancelled(queues):
                self._renew(queue)


def cancel_running(delivery: Delivery) -> None:
    """Interrupt a job, or keep it from starting where it is about to."""
    # In this order: who begins says so first, and then looks whether it is cancelled.
    delivery.is_cancelled = True
    delivery.interrupt(Cancelled)
    logger.info("The job is cancelled", extra={"job_id": delivery.message_id, "actor": delivery.actor_name})
