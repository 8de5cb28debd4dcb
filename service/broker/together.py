"""Settles outcomes whose threads wait for it: in one call those of several threads, where several are about to end."""

from collections import deque
from collections.abc import Callable
from threading import Event, Lock

from service.broker.settlement import Settlement

#: How long the first one waits for others at most: about what a call costs, since they may be long.
COMPANY_SECONDS = 0.0005


class _Place:
    """A thread in the line. `turn` is released when its outcome is carried out, or when it is to do that itself."""

    __slots__ = ("is_done", "settlement", "turn")

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self.is_done = False
        self.turn = Lock()
        self.turn.acquire()


class Together:
    """The outcomes of one queue. `carry_out` sends up to `most` of them.

    `expects_more` is given how many threads wait, and says whether another one may come soon.
    """

    def __init__(
        self, carry_out: Callable[[list[Settlement]], None], most: int, expects_more: Callable[[int], bool]
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._expects_more = expects_more
        self._line: deque[_Place] = deque()
        self._is_led = False
        self._guard = Lock()
        self._is_full = Event()

    def settle(self, settlement: Settlement) -> None:
        """Return when an outcome has been given to `carry_out`, by this thread or another."""
        own = _Place(settlement)
        with self._guard:
            self._line.append(own)
            leads, self._is_led = not self._is_led, True
        if not leads:
            if not self._expects_more(len(self._line)):
                self._is_full.set()
            own.turn.acquire()
        if not own.is_done:
            self._lead()

    def _lead(self) -> None:
        """Carry out what is in the line: this thread's own is the first. Whoever comes meanwhile leads next."""
        batch: list[_Place] = []
        try:
            self._is_full.clear()  # before the look: who fills the line after it wakes this thread, and nobody later
            if self._expects_more(len(self._line)):
                self._is_full.wait(COMPANY_SECONDS)
            batch = [self._line.popleft() for _ in range(min(len(self._line), self._most))]
            self._carry_out([place.settlement for place in batch])
        finally:
            with self._guard:
                after = self._line[0] if self._line else None
                self._is_led = after is not None
            for place in batch:
                place.is_done = True
                place.turn.release()
            if after:
                after.turn.release()
