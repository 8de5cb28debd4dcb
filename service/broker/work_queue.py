"""The queue between a worker's consumers and its threads, filled with a whole fetch at a time.

Dramatiq's consumer thread puts one message at a time, with a lock, a wake-up and a look at its delayed messages for
each: for short jobs that costs more than the job. What is put here has the same form, so its threads see no difference.
"""

from collections.abc import Iterable
from heapq import heappush
from time import monotonic_ns
from typing import Any, cast

from dramatiq import common, worker

from service.broker.delivery import Delivery

#: Not public. The version is pinned, and a test compares the two ways.
_Item = cast("Any", worker)._WorkQueueItem


class WorkQueue:
    """Dramatiq's `work_queue` of one worker. Thread-safe."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put_all(self, deliveries: Iterable[Delivery]) -> None:
        """Hand over messages of one fetch in their order, after those that wait already, of whichever queue.

        Redis has put the fetch in order. By priority here too, a busy queue's would keep another's waiting, leased.
        """
        queued_at = monotonic_ns()
        items = [_Item(0, delivery, queued_at + number) for number, delivery in enumerate(deliveries)]
        with self._queue.mutex:
            for item in items:
                heappush(self._queue.queue, item)
            self._queue.unfinished_tasks += len(items)
            self._queue.not_empty.notify(len(items))

    def take_all(self) -> list[Delivery]:
        """Take out what no thread has begun."""
        deliveries: list[Delivery] = [item.message for item in cast("Any", common).iter_queue(self._queue)]
        for _ in deliveries:
            self._queue.task_done()
        return deliveries
