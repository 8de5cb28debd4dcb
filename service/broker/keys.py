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
        """Hash: entry to `token started_ms worker` of the delivery that holds it, with `begun` where a suspect has."""
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
    def dead(self) -> str:
        """Sorted set: dead letters by the time of death."""
        return self._key("dead")

    @property
    def dead_messages(self) -> str:
        """Hash: dead letter to its record, JSON."""
        return self._key("dead-messages")

    @property
    def finals(self) -> str:
        """Hash: job to its final event, until that is in the database."""
        return self._key("finals")

    @property
    def events(self) -> str:
        """Stream: what happened. An entry may carry the events of many jobs."""
        return self._key("events")

    @property
    def outgoing(self) -> str:
        """List: what jobs of this queue have sent and what is not in its own queue yet."""
        return self._key("outgoing")

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
