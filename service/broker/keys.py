"""The names of our Redis keys. The part in braces is the hash tag: all keys of one queue are in one cluster slot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue in one namespace. An entry is one message in the queue; its name is mostly its job's id."""

    namespace: str
    queue: str

    def _key(self, name: str) -> str:
        return f"{{{self.namespace}:{self.queue}}}:{name}"

    @property
    def ready(self) -> str:
        """Sorted set: entries that may start, by priority and then by the original send."""
        return self._key("ready")

    @property
    def delayed(self) -> str:
        """Sorted set: entries that wait, by due time in milliseconds."""
        return self._key("delayed")

    @property
    def messages(self) -> str:
        """Hash: entry to its header and message, from the send until it is settled for good."""
        return self._key("messages")

    @property
    def leases(self) -> str:
        """Hash: entry to the delivery that holds it: see common.lua."""
        return self._key("leases")

    @property
    def deadlines(self) -> str:
        """Sorted set: entries that are held, by the time at which their lease ends."""
        return self._key("deadlines")

    @property
    def lapses(self) -> str:
        """Hash: entry to the number of its deliveries whose worker died, maybe of it."""
        return self._key("lapses")

    @property
    def once(self) -> str:
        """Hash: idempotency key to who holds it, or to how its job ended: see common.lua."""
        return self._key("once")

    def once_pointer(self, key: str) -> str:
        """String with an expiry, of the whole namespace: the queue in which an idempotency key for all queues counts
        now, and the token of the delivery that has said so.
        """
        return f"{self.namespace}:once:{key}"

    @property
    def once_until(self) -> str:
        """Sorted set: idempotency keys whose job has ended, by the time at which they are free again."""
        return self._key("once-until")

    @property
    def once_waiting(self) -> str:
        """Sorted set by text: entries that wait for the holder of their idempotency key."""
        return self._key("once-waiting")

    @property
    def unique(self) -> str:
        """Hash: unique key to `ENTRY UNTIL_MS[ ended]` of who has it: as long as that entry is in `messages`, and with
        `ended` until then in any case; 0 for no time.
        """
        return self._key("unique")

    @property
    def dead(self) -> str:
        """Sorted set: dead letters by the time of death."""
        return self._key("dead")

    @property
    def dead_messages(self) -> str:
        """Hash: dead letter to its message, header and all, as it was stored."""
        return self._key("dead-messages")

    @property
    def dead_letters(self) -> str:
        """Hash: dead letter to its record: a line of JSON with time and event of the death, then the attempts' log."""
        return self._key("dead-letters")

    @property
    def untold(self) -> str:
        """Sorted set: `died_ms entry` of deaths that are still to be told of, by the time from which anybody may."""
        return self._key("untold")

    @property
    def attempts(self) -> str:
        """Hash: entry to the log of its attempts, a line of JSON each, from the first failure until it has ended."""
        return self._key("attempts")

    @property
    def cancels(self) -> str:
        """Hash: entry that is held and cancelled to the error that says by whom and why, JSON. Until it ends."""
        return self._key("cancels")

    @property
    def paused(self) -> str:
        """String: who has paused the queue, when and why, JSON. There while it is paused."""
        return self._key("paused")

    @property
    def workers(self) -> str:
        """Hash of the whole namespace: worker process to the time in ms when it said so, and what it is, JSON."""
        return f"{self.namespace}:workers"

    def replayed(self, request: str) -> str:
        """Set with an expiry: the dead letters that this request of an operator has replayed."""
        return self._key(f"replayed:{request}")

    @property
    def restored(self) -> str:
        """Hash with an expiry: job that was brought back from the database to the newest event that this knew of it."""
        return self._key("restored")

    @property
    def finals(self) -> str:
        """Hash: job to its final event, until that is in the database."""
        return self._key("finals")

    @property
    def events(self) -> str:
        """Stream: what happened. An entry may carry the events of many jobs."""
        return self._key("events")

    @property
    def folded(self) -> str:
        """Hash: entry to what was folded of its events while the database took none: see fold.lua."""
        return self._key("folded")

    @property
    def full(self) -> str:
        """String with an expiry: sends are refused, since too much is not stored yet."""
        return self._key("full")

    @property
    def outgoing(self) -> str:
        """List: what jobs of this queue have sent and what is not in its own queue yet."""
        return self._key("outgoing")

    @property
    def relaying(self) -> str:
        """String with an expiry: the worker process that takes what is outgoing to its queues."""
        return self._key("relaying")

    @property
    def progress(self) -> str:
        """Hash: entry to how far its job says it is, JSON. Until it ends."""
        return self._key("progress")

    @property
    def checkpoints(self) -> str:
        """Hash: entry to what its job's next attempt is to go on from, JSON. Until it ends."""
        return self._key("checkpoints")

    @property
    def counter(self) -> str:
        """Number: counts sends and deliveries. Orders sends, and fences deliveries."""
        return self._key("counter")

    @property
    def waiters(self) -> str:
        """Sorted set: idle worker processes, by the time until which they can be woken."""
        return self._key("waiters")

    def producer(self, producer: str) -> str:
        """String with an expiry: the number of a producer's newest send."""
        return self._key(f"producer:{producer}")

    def sent(self, job_id: str) -> str:
        """String with an expiry: this job was sent, and is not to be sent again before then."""
        return self._key(f"sent:{job_id}")
