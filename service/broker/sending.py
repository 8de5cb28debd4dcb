"""How messages are sent: one or many, at once, with the job that sends them, or once of several."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from dramatiq.message import Message

from service.broker.actor_names import ActorNames
from service.broker.batch_send import BatchSend, SendReport
from service.broker.outgoing import FollowUp, collecting
from service.broker.rows import row_of
from service.broker.sender import Sender
from service.broker.unique_keys import Met, as_met
from service.broker.wire import Row
from service.queues import policy_of

NO_DELAYS: Mapping[str, int] = MappingProxyType({})


class Sending(ActorNames):
    """The producer's side of the broker."""

    def _begin(self) -> None:
        super()._begin()
        self.sender = Sender(self)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send a message, `delay` in milliseconds. Raises BrokerUnavailable.

        Where its unique key has met a job, what it returns has the id of the job that there is now, and `unique_met`.
        What a typed actor sends goes out when its job has succeeded, in the same step.
        """
        self.emit_before("enqueue", message, delay)
        met: bool | Met = True
        if (follow_ups := collecting()) is None:
            met = self.send(message, delay_ms=delay)
        else:
            policy_of(message.queue_name)
            row = self.row(message, delay)
            follow_up = FollowUp(message.queue_name, message.message_id, row.packed())
            # At once, of a unique job, since this one is to know whether it is refused; and where a task or thread
            # sends that has outlived its job.
            if row.unique or not follow_ups.add(follow_up):
                met = self.send_rows(message.queue_name, [row])
        if isinstance(met, Met):
            message = as_met(message, met)
        self.emit_after("enqueue", message, delay)
        return message

    def enqueue_once(self, message: Message[Any], within_seconds: int, *, delay_ms: int | None = None) -> bool | Met:
        """Send a message unless its id was sent within this time. Returns whether it was stored now, or the job it met.

        Raises BrokerUnavailable.
        """
        self.emit_before("enqueue", message, delay_ms)
        is_new = self.send(message, delay_ms=delay_ms, once_within_seconds=within_seconds)
        self.emit_after("enqueue", message, delay_ms)
        return is_new

    def send(self, message: Message[Any], *, delay_ms: int | None = None, once_within_seconds: int = 0) -> bool | Met:
        """Send a message, and return whether it was stored, or the job that its unique key has met.

        Of several sends of one message id within `once_within_seconds`, whoever makes them, the first is stored.
        Raises BrokerUnavailable, JobExists for a unique key that is taken, and DeclarationError for a queue that no
        worker could serve.
        """
        policy_of(message.queue_name)
        rows = [self.row(message, delay_ms)]
        return self.send_rows(message.queue_name, rows, once_within_seconds=once_within_seconds)

    def send_many(
        self,
        messages: Sequence[Message[Any]],
        *,
        delay_ms: int | None = None,
        delays_ms: Mapping[str, int] = NO_DELAYS,
    ) -> SendReport:
        """Send messages in few round trips, and report which are stored. Raises nothing for an outage.

        Each waits for what `delays_ms` has for its message id, or else for `delay_ms`.
        Raises DeclarationError, with nothing sent, where a queue is not in the table.
        """
        by_queue: dict[str, list[Message[Any]]] = defaultdict(list)
        for message in messages:
            policy_of(message.queue_name)
            by_queue[message.queue_name].append(message)
        report = SendReport()
        for queue, own in by_queue.items():
            BatchSend(self, queue, delay_ms, delays_ms, report).send(own)
        return report

    def send_rows(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int] | None = None, once_within_seconds: int = 0
    ) -> bool | Met:
        """Send rows in one call. Returns whether they were stored, or the job that the only one has met.

        Raises BrokerUnavailable.
        """
        return self.sender.send_rows(queue, rows, send, once_within_seconds)

    def insisting(self) -> AbstractContextManager[None]:
        """For what follows a job: within it, this thread's sends wait for as long as Redis is out of reach, are stored
        once, and may carry all that is stored of the job.
        """
        return self.sender.insisting()

    def row(self, message: Message[Any], delay_ms: int | None) -> Row:
        """Return a message as it is sent. Raises ValueError for an id that is no UUID, PayloadError for its payload."""
        most_payload_bytes = self.max_message_bytes if self.sender.is_insisting else self.max_payload_bytes
        actor = self.find_actor(message.actor_name)
        return row_of(message, delay_ms, actor, self.max_message_bytes, most_payload_bytes)
