"""Settles in small batches: a worker thread hands its outcome over and goes on with the next job.

While the process is busy an outcome waits up to 2 ms for company; when nothing else runs it goes at once. What Redis
has not taken is kept and tried again, so an outage delays an outcome and never loses it.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import redis

from service.broker.background import Background
from service.broker.connections import is_outage
from service.broker.settlement import Settlement
from service.broker.together import Together
from service.queues import QUEUES

COMPANY_SECONDS = 0.002
BATCH = 200
BATCH_BYTES = 4 * 1024 * 1024
RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Settler(Background):
    """Sends settlements from a thread of its own. Closed, it has settled what was there.

    `carry_out` sends one queue's batch, `give_up` forgets a lease.
    """

    thread_name = "settler"

    def __init__(
        self,
        carry_out: Callable[[str, list[Settlement]], None],
        is_idle: Callable[[], bool],
        give_up: Callable[[Settlement], None],
    ) -> None:
        super().__init__()
        self._carry_out = carry_out
        self._give_up = give_up
        self._is_idle = is_idle
        self._waiting: deque[Settlement] = deque()
        self._at_once = {queue: Together(partial(self._settle_now, queue)) for queue in QUEUES}
        self._sleeping = False

    def add(self, settlement: Settlement) -> None:
        """Hand over one outcome."""
        self._waiting.append(settlement)
        if self._sleeping:
            with self._condition:
                self._condition.notify()

    def settle_now(self, settlement: Settlement, *, waits: bool = False) -> None:
        """Settle one outcome as soon as the call before is over. What Redis does not take now is kept with the others.

        waits: this thread goes on when that is done.
        """
        self._at_once[settlement.lease.queue].settle(settlement, waits=waits)

    def _settle_now(self, queue: str, batch: list[Settlement]) -> None:
        try:
            self._carry_out(queue, batch)
        except BaseException as error:
            for settlement in batch:
                self.add(settlement)
            if not isinstance(error, redis.RedisError):
                raise

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
            except Exception as error:  # noqa: BLE001 - each is logged when it fails alone
                if is_outage(error):
                    self._keep(queue, batch, error)
                else:
                    self._settle_one_by_one(queue, batch)

    def _settle_one_by_one(self, queue: str, batch: list[Settlement]) -> None:
        # One that can't be sent, or that Redis can never take, must not hold up the others. Its lease ends, and it runs
        # again as a suspect.
        for number, settlement in enumerate(batch):
            try:
                self._carry_out(queue, [settlement])
            except Exception as error:
                if is_outage(error):
                    self._keep(queue, batch[number:], error)
                    return
                job_id = settlement.lease.entry.partition("~")[0]
                logger.exception("The outcome of %s can't be settled", job_id, extra={"queue": queue, "job_id": job_id})
                self._give_up(settlement)

    def _keep(self, queue: str, batch: list[Settlement], error: Exception) -> None:
        logger.warning("Outcomes can't be settled now, and are kept: %s", error, extra={"queue": queue})
        self._waiting.extendleft(reversed(batch))
        time.sleep(RETRY_SECONDS)
