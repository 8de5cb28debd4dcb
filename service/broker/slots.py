"""How many messages a worker process may hold, by queue: the concurrency of the table, and 20 ms of work ahead."""

import time
from collections import Counter, deque
from dataclasses import dataclass
from math import inf
from threading import Lock

from service.queues import QueuePolicy, policy_of

AHEAD_SECONDS = 0.02
MOST_AHEAD = 500
#: The part of what is held ahead that is fetched again at once.
REFILL = 2


@dataclass
class _Pace:
    """How fast the jobs of one queue end here, by the last stretch of at least 20 ms.

    Long jobs may end all at once, one for each thread, and say nothing by that. So only what ended beyond that counts:
    within a stretch that is shorter than a job there is nothing beyond it.
    """

    per_second: float = 0.0
    finished: int = 0
    since: float = 0.0

    def next(self, now: float, threads: int) -> float:
        """Take the time since the last stretch into account."""
        elapsed = now - self.since
        if elapsed >= AHEAD_SECONDS:
            self.per_second = max(self.finished - threads, 0) / elapsed
            self.finished, self.since = 0, now
        return self.per_second


class Slots:
    """Counts the messages that the consumers of one process have fetched and that have not ended. Thread-safe.

    A consumer that gets none is told by `finished` or `give_back` when to ask again: so it asks for many at a time
    while jobs are short, and at once when they are long. What is fetched must find a thread at once: one that runs a
    long job of another queue is none, whereas short jobs free one all the time.

    A thread that has ended a job never waits for the lock: it leaves word, and whoever has the lock counts it.
    """

    def __init__(self, threads: int = 8) -> None:
        self.threads = threads
        self._held: Counter[str] = Counter()
        #: Of these, the ones that run without a thread.
        self._away: Counter[str] = Counter()
        self._pace: dict[str, _Pace] = {}
        #: The consumers that wait, in the order in which they came: each with what its queue may hold at most when it
        #: is called, or inf where it waits for a thread that may be any queue's.
        self._waiting: dict[str, float] = {}
        #: The queues of jobs that have ended and are not counted yet.
        self._ended: deque[str] = deque()
        self._lock = Lock()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, so that nothing will end soon."""
        return not any(self._held.values())

    def take(self, queue: str) -> int:
        """Reserve as many slots as this queue may fill now, and return their number. `count_ended` must follow."""
        policy = policy_of(queue)
        with self._lock:
            held = self._held[queue]
            ahead = self._ahead(queue, policy)
            threads = self.threads - self._threads_elsewhere(queue)
            free = min(policy.concurrency, threads + self._away[queue]) + ahead - held
            # While there is work ahead, one call for many is worth waiting for; the rest lasts while it is under way.
            least = ahead // REFILL
            if free <= least:
                own = held - 1 if ahead < 2 else held - (least + 1 - free)
                lacks_threads = ahead < 2 and threads < min(policy.concurrency, self.threads)
                self._waiting[queue] = inf if lacks_threads else own
                return 0
            self._held[queue] = held + free
            return free

    def leave(self, queue: str) -> tuple[bool, list[str]]:
        """Say whether a job may leave its thread, so that this can run another, and whose consumers are to ask again.

        As many may leave as its queue's concurrency is above the number of threads: together they stay within it.
        """
        with self._lock:
            if self._away[queue] >= policy_of(queue).concurrency - self.threads:
                return False, []
            self._away[queue] += 1
            if self._waiting.pop(queue, None) is not None:
                return True, [queue]
            return True, self._called()

    def come_back(self, queue: str) -> None:
        """A job that has left is about to end in a thread."""
        with self._lock:
            self._away[queue] -= 1

    def give_back(self, queue: str, count: int = 1) -> list[str]:
        """Free slots whose messages were given back, or never came. Returns whose consumers are to ask again."""
        with self._lock:
            self._held[queue] -= count
            return self._called() if count else []

    def finished(self, queue: str) -> list[str]:
        """Free the slot of a job that has ended. Returns the queues whose consumers are to ask again."""
        self._ended.append(queue)
        return self.count_ended()

    def count_ended(self) -> list[str]:
        """Count jobs that have ended while the lock was held. Returns the queues whose consumers are to ask again."""
        called: list[str] = []
        while self._ended and self._lock.acquire(blocking=False):
            try:
                while self._ended:
                    called += self._count(self._ended.popleft())
            finally:
                self._lock.release()
        return called

    def _count(self, ended: str) -> list[str]:
        self._held[ended] -= 1
        if ended in self._pace:
            self._pace[ended].finished += 1
        return self._called()

    def _called(self) -> list[str]:
        # The first in the line: if it leaves the slot, the next is called when it gives that back.
        for name, most in self._waiting.items():
            if self._held[name] <= most:
                del self._waiting[name]
                return [name]
        return []

    def _threads_elsewhere(self, queue: str) -> int:
        others = [name for name, held in self._held.items() if held and name != queue]
        return sum(self._held[name] - self._away[name] for name in others if self._ahead(name, policy_of(name)) == 0)

    def _ahead(self, queue: str, policy: QueuePolicy) -> int:
        # Where there are more threads than the queue may use, whatever is held runs: nothing may be held ahead.
        if not policy.fetch_ahead or self.threads > policy.concurrency:
            return 0
        pace = self._pace.setdefault(queue, _Pace()).next(time.monotonic(), self.threads)
        return min(int(pace * AHEAD_SECONDS), MOST_AHEAD)
