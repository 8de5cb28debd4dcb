"""Settles in small batches: a worker thread hands its outcome over and goes on with the next job.

While the process is busy an outcome waits up to 2 ms for company; when nothing else runs it goes at once. What Redis
has not taken is kept and tried again, so an outage delays an outcome and never loses it.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from threading import Condition, Thread

import redis

from service.broker.settlement import Settlement

COMPANY_SECONDS = 0.002
BATCH = 200
BATCH_BYTES = 4 * 1024 * 1024
RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Settler:
    """Sends settlements from a thread of its own. `carry_out` sends one queue's batch, `give_up` forgets a lease."""

    def __init__(
        self,
        carry_out: Callable[[str, list[Settlement]], None],
        is_idle: Callable[[], bool],
        give_up: Callable[[Settlement], None],
    ) -> None:
        self._carry_out = carry_out
        self._give_up = give_up
        self._is_idle = is_idle
        self._waiting: deque[Settlement] = deque()
        self._sleeping = False
        self._condition = Condition()
        self._closing = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Settle until closed."""
        self._closing = False
        self._thread = Thread(target=self._run, name="settler", daemon=True)
        self._thread.start()

    def add(self, settlement: Settlement) -> None:
        """Hand over one outcome."""
        self._waiting.append(settlement)
        if self._sleeping:
            with self._condition:
                self._condition.notify()

    def settle_now(self, settlement: Settlement) -> None:
        """Settle one outcome in this thread. What Redis does not take now is kept with the others."""
        try:
            self._carry_out(settlement.lease.queue, [settlement])
        except redis.RedisError:
            self.add(settlement)

    def close(self, timeout_seconds: float) -> bool:
        """Settle what is there, then stop. Returns whether all was settled in time."""
        if self._thread is None:
            return not self._waiting
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                # Set before the look at what waits: who adds after the look sees it.
                self._sleeping = True
                self._condition.wait_for(lambda: self._waiting or self._closing, 1.0)
                self._sleeping = False
                if not self._waiting:
                    if self._closing:
                        return
                    continue
            if len(self._waiting) < BATCH and not self._closing and not self._is_idle():
                time.sleep(COMPANY_SECONDS)
            self._settle_batch()

    def _settle_batch(self) -> None:
        batches: dict[str, list[Settlement]] = defaultdict(list)
        size = 0
        for _ in range(min(len(self._waiting), BATCH)):
            settlement = self._waiting.popleft()
            batches[settlement.lease.queue].append(settlement)
            size += settlement.size()
            if size > BATCH_BYTES:
                break
        for queue, batch in batches.items():
            try:
                self._carry_out(queue, batch)
            except redis.RedisError as error:
                logger.warning("Outcomes can't be settled now, and are kept: %s", error, extra={"queue": queue})
                self._waiting.extendleft(reversed(batch))
                time.sleep(RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - each is logged when it fails alone
                self._settle_one_by_one(queue, batch)

    def _settle_one_by_one(self, queue: str, batch: list[Settlement]) -> None:
        # One that can't be sent at all must not hold up the others. Its lease ends, and it runs again as a suspect.
        for number, settlement in enumerate(batch):
            try:
                self._carry_out(queue, [settlement])
            except redis.RedisError:
                self._waiting.extendleft(reversed(batch[number:]))
                return
            except Exception:
                logger.exception("The outcome of %s can't be settled", settlement.lease.entry, extra={"queue": queue})
                self._give_up(settlement)
