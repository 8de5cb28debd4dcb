"""A process that works: its threads, and how it takes messages."""

from collections.abc import Callable
from functools import cached_property
from threading import Lock
from time import monotonic
from typing import ClassVar

from dramatiq.broker import Consumer
from dramatiq.middleware import Middleware

from service.broker.cancellations import Cancellations
from service.broker.consumer import QueueConsumer
from service.broker.delivery import Delivery
from service.broker.intake import Intake
from service.broker.link import Link
from service.broker.presence import Presence
from service.broker.pulse import Pulse
from service.broker.settlement import cancelled
from service.broker.settling import Settling
from service.broker.wide_keys import WideKeys
from service.broker.worker_life import WorkerLife
from service.settings import Settings

#: How often to ask for work while nothing can wake this process.
UNSUBSCRIBED_POLL_SECONDS = 1.0
#: How long to try to settle what is left when the work ends.
CLOSE_SECONDS = 10.0


class Working(Settling):
    """The worker's side of the broker."""

    of_one_process: ClassVar[tuple[str, ...]] = (
        *Settling.of_one_process,
        *("intake", "wide_keys", "link", "cancellations", "presence"),
    )

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self.life = WorkerLife(self)
        super().__init__(settings, [*middleware, self.life])

    def _begin(self) -> None:
        super()._begin()
        self.pulse = Pulse()
        self._working = False
        self._working_lock = Lock()

    @cached_property
    def intake(self) -> Intake:
        return Intake(self.find_actor, self.settler.add, self._settings().unknown_actor_seconds)

    @cached_property
    def wide_keys(self) -> WideKeys:
        return WideKeys(self.wire, self.find_actor, self.settler.add)

    @cached_property
    def link(self) -> Link:
        return Link(where=self.where)

    @cached_property
    def cancellations(self) -> Cancellations:
        return Cancellations(
            self.holdings, self.wire.have_cancelled, self.renewal.renew_queue, self.life.drop_cancelled
        )

    @cached_property
    def presence(self) -> Presence:
        return Presence(self)

    def _cancelled(self, queue: str, entry: str, token: str) -> None:
        self.cancellations.arrived(queue, entry, token)

    def start(self) -> None:
        """Listen, renew and settle, from threads of their own, until `stop`."""
        with self._working_lock:
            if not self._working:
                self._working = True
                parts = (self.wakeups, self.settler, self.relay, self.renewal, self.obituaries, self.backlog)
                for part in (*parts, self.cancellations):
                    part.start()

    def stop(self) -> None:
        """Settle what has ended, and let the threads end. A further worker of this process may `start` them again."""
        with self._working_lock:
            if self._working:
                self._working = False
                # What Redis does not take now it may take later, and what it never takes runs again.
                self.settler.close(max(CLOSE_SECONDS, self.life.stop.seconds_left))
                ends_at = monotonic() + CLOSE_SECONDS
                for part in (self.relay, self.notes, self.obituaries):
                    part.close(max(ends_at - monotonic(), 0.0))
                self.renewal.stop()
                self.cancellations.stop()
                self.backlog.stop()
                self.wakeups.stop()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer. The table of queues bounds what it holds, whatever `prefetch` says."""
        self.obituaries.serve(queue_name)
        self.backlog.serve(queue_name)
        self.start()  # also where no worker of Dramatiq's runs: what a consumer takes is renewed and settled
        return QueueConsumer(self, queue_name, timeout)

    def fetch(self, queue: str, count: int) -> tuple[list[Delivery], float]:
        """Lease up to `count` messages. Returns them, and the seconds after which to ask again where there is none.

        Raises redis.RedisError.
        """
        if self.draining:
            return [], UNSUBSCRIBED_POLL_SECONDS
        lease_seconds = self._lease_seconds(queue)
        poll_seconds = lease_seconds / 3
        wakeable_ms = int(poll_seconds * 1000) + 1000 if self.wakeups.subscribed else 0
        if not wakeable_ms:
            poll_seconds = min(poll_seconds, UNSUBSCRIBED_POLL_SECONDS)
        fetched = self.wire.fetch(queue, count, lease_ms=int(lease_seconds * 1000), wakeable_ms=wakeable_ms)
        if fetched.has_outgoing:
            self.relay.call(queue)
        if fetched.soonest_ms is not None:
            poll_seconds = min(poll_seconds, fetched.soonest_ms / 1000)
        if fetched.died:
            self.obituaries.wake()
        self.holdings[queue].add([lease for lease, _, _ in fetched.messages])
        opened = [self.intake.open(*message) for message in fetched.messages]
        deliveries = self.wide_keys.admitted([delivery for delivery in opened if delivery])
        if self.holdings[queue].has_cancelled:
            deliveries = self._without_cancelled(queue, deliveries)
        if fetched.messages and not deliveries:
            poll_seconds = 0.0  # none of these can run here, and behind them there may be others
        return deliveries, poll_seconds

    def _without_cancelled(self, queue: str, deliveries: list[Delivery]) -> list[Delivery]:
        """Leave out what was cancelled before the fetch that has leased it was answered: its slots go back with it."""
        holdings = self.holdings[queue]
        for delivery in deliveries:
            if holdings.is_cancelled(delivery.lease):
                self.settler.add(cancelled(delivery.lease, delivery.actor_name))
        return [delivery for delivery in deliveries if not holdings.is_cancelled(delivery.lease)]

    def pass_on(self, queue: str) -> None:
        """Call another worker for what this one was called for, and has no slot to run. Raises redis.RedisError."""
        self.wire.fetch(queue, 0, lease_ms=0, wakeable_ms=0)

    def take(self, queue: str) -> int:
        """Reserve slots for messages to be fetched, and return their number: 0 where there are none now."""
        slots = self.slots.take(queue)
        self._call(self.slots.count_ended())
        return slots

    def leave_thread(self, delivery: Delivery) -> bool:
        """Say whether a job may run without the thread that began it, which then takes another."""
        may_leave, queues = self.slots.leave(delivery.lease.queue)
        self._call(queues)
        return may_leave
