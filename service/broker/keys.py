"""The names of our Redis keys. The part in braces is the hash tag: keys of one queue share a cluster slot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue in one namespace.

    `list_of`, `messages_of` and so on are the layout of Dramatiq's own Redis broker, which still moves the messages;
    `events`, `job` and `sent` are ours.
    """

    namespace: str
    queue: str

    @property
    def events(self) -> str:
        """Stream: one entry for each transition of a job."""
        return f"{{{self.namespace}:{self.queue}}}:events"

    def job(self, job_id: str) -> str:
        """Hash: what is known of one job, until its final state is in the database."""
        return f"{{{self.namespace}:{self.queue}}}:job:{job_id}"

    def sent(self, job_id: str) -> str:
        """String with an expiry: this job was sent, and is not to be sent again before then."""
        return f"{{{self.namespace}:{self.queue}}}:sent:{job_id}"

    def list_of(self, queue: str) -> str:
        """List: message ids that wait. `queue` is this queue, or its delay queue."""
        return f"{self.namespace}:{queue}"

    def messages_of(self, queue: str) -> str:
        """Hash: message id to encoded message."""
        return f"{self.namespace}:{queue}.msgs"

    def held_by(self, broker_id: str, queue: str) -> str:
        """Set: ids of the messages that one worker process has fetched and not settled."""
        return f"{self.namespace}:__acks__.{broker_id}.{queue}"

    @property
    def dead(self) -> str:
        """Sorted set: ids of dead letters by the time of death."""
        return f"{self.namespace}:{self.queue}.XQ"

    @property
    def dead_messages(self) -> str:
        """Hash: id to encoded message of a dead letter."""
        return f"{self.namespace}:{self.queue}.XQ.msgs"
