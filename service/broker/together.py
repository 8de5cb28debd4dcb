"""Settles outcomes at once, and several in one call: what ends while a call is under way goes out with the next one.

The thread that comes when no call is under way makes it, and the next ones until the line is empty; those that come
meanwhile leave their outcomes in the line and go on. So a process that dies may have ended `MOST` jobs that are not
settled, and mostly none.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock, Semaphore
from typing import NamedTuple

from service.broker.settlement import Settlement

#: Outcomes of one queue that are under way or in the line. Each may take effect again after a crash; with fewer, calls
#: are so small that a job with an idempotency key costs more than twice another one.
MOST = 32


class _Place(NamedTuple):
    settlement: Settlement
    #: Released when the outcome has been carried out, where its thread waits for that.
    is_done: "Lock | None"


class Together:
    """The outcomes of one queue. `carry_out` sends up to `MOST` of them."""

    def __init__(self, carry_out: Callable[[list[Settlement]], None]) -> None:
        self._carry_out = carry_out
        self._line: deque[_Place] = deque()
        self._leading = Lock()
        self._room = Semaphore(MOST)

    def settle(self, settlement: Settlement, *, waits: bool = False) -> None:
        """Give an outcome to `carry_out`, or leave it to the thread that is at it. `waits`: until it is carried out."""
        is_done = Lock() if waits else None
        if is_done:
            is_done.acquire()
        self._room.acquire()
        self._line.append(_Place(settlement, is_done))
        # Looked at again each time: what has come as the one who led left is left to whoever put it there.
        while self._line and self._leading.acquire(blocking=False):
            try:
                self._lead()
            finally:
                self._leading.release()
        if is_done:
            is_done.acquire()

    def _lead(self) -> None:
        raised: BaseException | None = None
        while self._line:
            batch = [self._line.popleft() for _ in range(len(self._line))]
            try:
                self._carry_out([place.settlement for place in batch])
            except BaseException as error:  # noqa: BLE001 - the others in the line have no part in it
                raised = raised or error
            self._room.release(len(batch))
            for place in batch:
                if place.is_done:
                    place.is_done.release()
        if raised:
            raise raised
