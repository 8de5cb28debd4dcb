"""What this process holds: the leases of one queue, with the deliveries that they belong to. Thread-safe."""

from collections.abc import Callable
from threading import Lock

from service.broker.delivery import Delivery, Lease


class Holdings:
    """The leases of one queue in this process, from the fetch until Redis has settled them."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._running: dict[str, Delivery] = {}
        self._lock = Lock()

    def add(self, leases: list[Lease]) -> None:
        """Leases that were fetched."""
        with self._lock:
            self._leases.update((lease.entry, lease) for lease in leases)

    def started(self, delivery: Delivery) -> None:
        """A job of these has started: it can be interrupted from now on."""
        with self._lock:
            self._running[delivery.lease.entry] = delivery

    def finished(self, delivery: Delivery) -> None:
        """A job of these has ended, and only waits for its settlement."""
        with self._lock:
            self._running.pop(delivery.lease.entry, None)

    def remove(self, leases: list[Lease]) -> None:
        """Leases that were settled or given back."""
        with self._lock:
            for lease in leases:
                if self._leases.get(lease.entry) is lease:
                    del self._leases[lease.entry]

    def all(self) -> list[Lease]:
        """The leases to be renewed."""
        with self._lock:
            return list(self._leases.values())

    def interrupt_all(self, interrupt: Callable[[Delivery], None]) -> list[Delivery]:
        """Interrupt every job that runs, and return them."""
        with self._lock:
            running = list(self._running.values())
            for delivery in running:
                interrupt(delivery)
            return running

    def lose(self, entries: list[str], interrupt: Callable[[Delivery], None]) -> None:
        """Drop leases that are held elsewhere now, and interrupt their jobs.

        A job can't end while its thread is being interrupted: else the next job of that thread would be hit.
        """
        with self._lock:
            for entry in entries:
                self._leases.pop(entry, None)
                if running := self._running.get(entry):
                    interrupt(running)
