"""What becomes of the messages that a process holds: settled, given back, renewed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from time import sleep
from typing import ClassVar

import redis

from service.broker.connections import may_have_been_carried_out
from service.broker.delivery import Delivery, Lease
from service.broker.notes import Note, Notes
from service.broker.obituaries import Obituaries
from service.broker.once import remembered
from service.broker.outcome import Failure, Reason
from service.broker.outgoing import FollowUp
from service.broker.relay import ONCE_WITHIN_SECONDS, Relay
from service.broker.renewal import Renewal
from service.broker.sender import INSIST_SECONDS
from service.broker.sending import Sending
from service.broker.settlement import Settlement, cancelled, dead, released, settlement_of, unreceived
from service.broker.settler import BATCH, Settler
from service.queues import QUEUES, policy_of

#: The outcomes of which a job does not come back.
ENDS = frozenset({"done", "dead", "cancelled"})


class Settling(Sending):
    """The end of each delivery, and its lease until then."""

    of_one_process: ClassVar[tuple[str, ...]] = (
        *Sending.of_one_process,
        *("settler", "relay", "notes", "renewal", "obituaries"),
    )

    def _begin(self) -> None:
        super()._begin()
        #: What is settled or is not: the server was asked, and its reply never came.
        self._maybe_settled: set[Lease] = set()
        #: The jobs that have ended for good here, by queue.
        self.finished: Counter[str] = Counter()

    @cached_property
    def settler(self) -> Settler:
        return Settler(self.settle, lambda: self.slots.is_idle, self._forget)

    @cached_property
    def relay(self) -> Relay:
        wire = self.wire
        return Relay(wire.outgoing, self._store, wire.remove_outgoing, wire.take_turn, wire.end_turn)

    def _store(self, nonce: str, follow_up: FollowUp) -> None:
        self.wire.store(nonce, follow_up, ONCE_WITHIN_SECONDS)

    @cached_property
    def notes(self) -> Notes:
        return Notes(self._note)

    def _note(self, queue: str, notes: list[Note]) -> None:
        self.wire.note(queue, notes)

    @cached_property
    def renewal(self) -> Renewal:
        return Renewal(self.holdings, self.renew, min(map(self._lease_seconds, QUEUES)) / 3)

    @cached_property
    def obituaries(self) -> Obituaries:
        return Obituaries(self)

    def finish(self, delivery: Delivery) -> None:
        """Take a delivery's outcome; it is settled soon. Never raises for an outage."""
        queue = delivery.lease.queue
        self._call(self.slots.finished(queue))
        try:
            settlement = settlement_of(delivery)
        except Exception as error:  # noqa: BLE001 - what can't be stored for a retry must not stay with this worker
            settlement = dead(delivery.lease, delivery.actor_name, Failure.of(error), Reason.INVALID)
        actor = self.find_actor(delivery.actor_name)
        options = actor.options if actor else {}
        waits = bool(options.get("settle_at_once"))
        if delivery.lease.key:
            settlement = remembered(settlement, options)
        if delivery.lease.key or waits:
            # At once: what ends before its key is kept would take effect again after a crash.
            self.settler.settle_now(settlement, waits=waits)
        else:
            self.settler.add(settlement)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what was fetched and not started: to its place, and with no attempt counted."""
        for delivery in deliveries:
            self.give_back(delivery.lease.queue, 1)
            self.settler.add(released(delivery))

    def end_cancelled(self, deliveries: Iterable[Delivery]) -> None:
        """End what was cancelled and has not started."""
        for delivery in deliveries:
            self.give_back(delivery.lease.queue, 1)
            self.settler.add(cancelled(delivery.lease, delivery.actor_name))

    def give_back(self, queue: str, slots: int) -> None:
        """Free slots of a queue that nothing has come for."""
        self._call([*self.slots.give_back(queue, slots), *self.slots.count_ended()])

    def _call(self, queues: list[str]) -> None:
        for queue in queues:
            self.wakeups.wake(queue)

    def release_unreceived(self, queue: str) -> None:
        """Give back what fetches have leased whose replies never came. Raises redis.RedisError.

        They would come back when their leases end, but as if a worker had died of them.
        """
        held = self.wire.held(queue)
        # Asked second: what was settled meanwhile is in neither, and refused.
        received = {lease.token for lease in self.holdings[queue].all()}
        lost = [unreceived(lease, actor) for lease, actor in held if lease.token not in received]
        for start in range(0, len(lost), BATCH):
            self.wire.settle(queue, lost[start : start + BATCH])

    def begin(self, lease: Lease) -> bool:
        """Note that a suspect begins; waits as long as Redis is out of reach. Returns whether it is still held."""
        while True:
            try:
                return self.wire.begin(lease)
            except redis.RedisError as error:
                self.logger.warning("A suspect can't begin now: %s", error)
                sleep(INSIST_SECONDS)

    def settle(self, queue: str, batch: Sequence[Settlement]) -> None:
        """Settle entries of one queue now. Raises redis.RedisError."""
        leases = [settlement.lease for settlement in batch]
        try:
            refused = self.wire.settle(queue, batch)
        except redis.RedisError as error:
            if may_have_been_carried_out(error):
                self._maybe_settled.update(leases)
            raise
        self.holdings[queue].remove(leases)
        self.finished[queue] += sum(each.outcome in ENDS for each in batch)
        if any(settlement.follow_ups for settlement in batch):
            self.relay.call(queue)
        if any(settlement.outcome == "dead" for settlement in batch):
            self.obituaries.wake()
        repeated = {lease.entry for lease in leases if lease in self._maybe_settled}
        self._maybe_settled.difference_update(leases)
        for entry in refused:
            if entry in repeated:
                self.logger.info("The outcome of %s was settled before, and only the reply was lost", entry)
            else:
                self.logger.warning("The lease had ended: the outcome of %s is refused", entry)

    def _forget(self, settlement: Settlement) -> None:
        self.holdings[settlement.lease.queue].remove([settlement.lease])

    def renew(self, queue: str, leases: Sequence[Lease]) -> list[str]:
        """Extend leases of one queue. Returns the entries that are lost. Raises redis.RedisError.

        What is cancelled of them is ended here.
        """
        lost, marked = self.wire.renew(queue, leases, lease_ms=int(self._lease_seconds(queue) * 1000))
        if marked:
            tokens = {lease.entry: lease.token for lease in leases}
            for entry in marked:
                self._cancelled(queue, entry, tokens[entry])
        return lost

    def extend(self, lease: Lease) -> bool:
        """Renew one lease now. Returns whether it is still held. Raises BrokerUnavailable."""
        try:
            return not self.renew(lease.queue, [lease])
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def _lease_seconds(self, queue: str) -> float:
        return self._settings().lease_seconds or policy_of(queue).lease_seconds

    def keep_checkpoint(self, lease: Lease, cursor: str) -> bool:
        """Keep JSON for the next attempt. Returns whether the lease is still held. Raises BrokerUnavailable."""
        try:
            return not self.wire.note(lease.queue, [Note(lease, "checkpoint", cursor)])
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def find_checkpoint(self, lease: Lease) -> str | None:
        """Return the JSON that attempts before have kept, or None. Raises BrokerUnavailable."""
        try:
            return self.wire.checkpoint(lease)
        except redis.RedisError as error:
            raise self.unavailable(error) from error
