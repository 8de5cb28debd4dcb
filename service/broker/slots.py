"""How many messages a worker process may hold, queue by queue: the concurrency of the table, and no hoarding."""

from collections import Counter
from threading import Lock

from service.queues import policy_of


class Slots:
    """Counts the messages that the consumers of one process have fetched and not settled. Thread-safe."""

    def __init__(self, threads: int = 8) -> None:
        self.threads = threads
        self._held: Counter[str] = Counter()
        self._lock = Lock()

    def take(self, queue: str) -> int:
        """Reserve as many slots as this queue may fill now, and return their number."""
        policy = policy_of(queue)
        with self._lock:
            free = policy.concurrency - self._held[queue]
            if policy.fetch_ahead:
                free = min(free, 2 * self.threads - self._held[queue])
            else:
                # Jobs of these queues run long: what is fetched must find a thread of its own at once.
                held = sum(count for name, count in self._held.items() if not policy_of(name).fetch_ahead)
                free = min(free, self.threads - held)
            free = max(free, 0)
            self._held[queue] += free
            return free

    def give_back(self, queue: str, count: int = 1) -> None:
        """Free slots whose messages were settled, given back, or never came."""
        with self._lock:
            self._held[queue] -= count
