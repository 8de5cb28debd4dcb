"""The queue between a worker's consumers and its threads, in the place of Dramatiq's.

Dramatiq's consumer thread puts one message at a time, with a lock, a wake-up and a look at its delayed messages for
each: for short jobs that costs more than the job. And its queue has one lock for all. A thread that loses the
interpreter while it holds that lock makes the others wait for it, and from then on each hands the lock to the next
through the kernel: with short jobs that doubles what a job costs. Here no lock is taken while there is work.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, cast

from dramatiq import worker

from service.broker.delivery import Delivery

#: Not public. The version is pinned, and a test compares the two ways.
_Item = cast("Any", worker)._WorkQueueItem

JOIN_LOOK_SECONDS = 0.01


class WorkQueue:
    """Has the methods of `queue.Queue` that Dramatiq's worker uses. First in, first out. Thread-safe."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        # By thread: each adds to a number of its own, so none needs a lock.
        self._put: defaultdict[int, int] = defaultdict(int)
        self._done: defaultdict[int, int] = defaultdict(int)
        self.get = self._items.get
        self.get_nowait = self._items.get_nowait

    @property
    def unfinished_tasks(self) -> int:
        """How many were put in and have not ended."""
        done = sum(list(self._done.values()))  # asked first: what is put meanwhile counts as unfinished
        return sum(list(self._put.values())) - done

    def put(self, item: Any) -> None:
        """Hand over one of Dramatiq's items."""
        self._put[get_ident()] += 1
        self._items.put(item)

    def put_all(self, deliveries: Iterable[Delivery]) -> None:
        """Hand over messages of one fetch in their order, after those that wait already, of whichever queue.

        Redis has put the fetch in order. By priority here too, a busy queue's would keep another's waiting, leased.
        """
        for delivery in deliveries:
            self.put(_Item(0, delivery, 0))

    def put_again(self, delivery: Delivery) -> None:
        """Hand over one whose run has left its thread and is over: it was counted when it came, and has not ended."""
        self._items.put(_Item(0, delivery, 0))

    def task_done(self) -> None:
        """Count one as ended."""
        self._done[get_ident()] += 1

    def join(self) -> None:
        """Wait until all that was put in has ended. For tests."""
        while self.unfinished_tasks:
            time.sleep(JOIN_LOOK_SECONDS)

    def take_all(self, meant: Callable[[Delivery], bool] | None = None) -> list[Delivery]:
        """Take out what no thread has begun and what is meant. The others keep their order."""
        taken: list[Delivery] = []
        kept: list[Delivery] = []
        while True:
            try:
                delivery = self.get_nowait().message
            except Empty:
                break
            if delivery.left or (meant and not meant(delivery)):
                kept.append(delivery)
            else:
                taken.append(delivery)
                self.task_done()
        for delivery in kept:
            self.put_again(delivery)
        return taken
