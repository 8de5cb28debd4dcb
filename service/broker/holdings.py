"""What this process holds: the leases of one queue, with the deliveries that they belong to. Thread-safe."""

from threading import Lock

from service.broker.delivery import Delivery, Lease

MOST_CANCELLED = 10_000


class Holdings:
    """The leases of one queue in this process, from the fetch until Redis has settled them."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        # Changed by one operation at a time, and for every job: without the lock.
        self._running: dict[str, Delivery] = {}
        #: Entry and token of what is cancelled, also of a fetch that is still on its way.
        self._cancelled: set[tuple[str, str]] = set()
        self._lock = Lock()

    def add(self, leases: list[Lease]) -> None:
        """Leases that were fetched."""
        with self._lock:
            self._leases.update((lease.entry, lease) for lease in leases)

    def started(self, delivery: Delivery) -> None:
        """A job of these is about to start: or is not, where it `is_cancelled` after this."""
        self._running[delivery.lease.entry] = delivery
        # After the line above: who cancels looks at what runs last.
        if self._cancelled and self.is_cancelled(delivery.lease):
            delivery.is_cancelled = True

    def cancel(self, entry: str, token: str) -> Delivery | None:
        """Keep a delivery from starting. Returns it where it has started before."""
        with self._lock:
            if len(self._cancelled) >= MOST_CANCELLED:
                self._cancelled.clear()  # of fetches whose replies were lost
            self._cancelled.add((entry, token))
        running = self._running.get(entry)
        return running if running and running.lease.token == token else None

    @property
    def has_cancelled(self) -> bool:
        """Whether anything is cancelled that has not ended."""
        return bool(self._cancelled)

    def is_cancelled(self, lease: Lease) -> bool:
        """Whether this process knows that a delivery is cancelled."""
        return (lease.entry, lease.token) in self._cancelled

    def finished(self, delivery: Delivery) -> None:
        """A job of these has ended, and only waits for its settlement."""
        self._running.pop(delivery.lease.entry, None)

    def remove(self, leases: list[Lease]) -> None:
        """Leases that were settled or given back."""
        with self._lock:
            for lease in leases:
                # By the token: of a sender that did not know the actor, a delivery's lease says something else.
                held = self._leases.get(lease.entry)
                if held and held.token == lease.token:
                    del self._leases[lease.entry]
                if self._cancelled:
                    self._cancelled.discard((lease.entry, lease.token))

    def all(self) -> list[Lease]:
        """The leases to be renewed."""
        with self._lock:
            return list(self._leases.values())

    def running(self) -> list[Delivery]:
        """The jobs that run now."""
        return list(self._running.values())

    def lose(self, entries: list[str]) -> list[Delivery]:
        """Drop leases that are held elsewhere now. Returns those of their jobs that run here still."""
        with self._lock:
            for entry in entries:
                self._leases.pop(entry, None)
        return [running for entry in entries if (running := self._running.get(entry))]
