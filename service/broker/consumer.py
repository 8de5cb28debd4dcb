"""The consumer: fetches the messages of one queue, hands them to Dramatiq's worker, and settles them."""

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import redis
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.common import compute_backoff
from dramatiq.errors import ConnectionClosed
from dramatiq.message import Message

from service.broker.messages import copy_message, decode_message
from service.broker.outcome import Dead, Failure, Outcome

if TYPE_CHECKING:
    from service.broker.redis_broker import RedisBroker


class Delivery(MessageProxy):
    """A message in a worker's hands. `outcome` is set by the chain before the worker settles it."""

    outcome: Outcome | None = None
    _message: Message[Any]

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return int(self.options.get("retries", 0)) + 1

    @property
    def redis_message_id(self) -> str:
        """The id of this copy of the message: a retry of the job is another copy."""
        return self.options["redis_message_id"]

    def encode(self) -> bytes:
        """The message as it is stored."""
        return self._message.encode()

    def copy_for_retry(self, traceback: str) -> Message[Any]:
        """The message of the next attempt."""
        return copy_message(self._message, options={"retries": self.attempt, "traceback": traceback})

    def failure(self) -> Failure | None:
        """What the worker says went wrong, where it rejected the message itself, such as for an unknown actor."""
        return Failure.of(self._exception) if self._exception else None


class QueueConsumer(Consumer):
    """Iterates over one queue, or over one delay queue. None means that there is nothing now."""

    def __init__(self, broker: "RedisBroker", queue: str, prefetch: int, timeout_ms: int) -> None:
        self.broker = broker
        self.queue = queue
        self.prefetch = prefetch
        self.timeout_ms = timeout_ms
        self._fetched: deque[bytes] = deque()
        self._held: set[str] = set()
        self._misses = 0
        broker.link.consumer_started(queue)

    @property
    def _is_delay_queue(self) -> bool:
        return self.queue in self.broker.delay_queues

    def __next__(self) -> Delivery | None:
        if not self._fetched:
            self._fetch()
        if not self._fetched:
            self._misses, backoff_ms = compute_backoff(self._misses, max_backoff=self.timeout_ms)
            time.sleep(backoff_ms / 1000)
            return None
        self._misses = 0
        delivery = Delivery(decode_message(self._fetched.popleft()))
        self._held.add(delivery.redis_message_id)
        return delivery

    def ack(self, message: MessageProxy) -> None:
        """Settle a message that did not die. Raises ConnectionClosed, upon which the worker tries again."""
        self._settle(message)

    def nack(self, message: MessageProxy) -> None:
        """Settle a message that died. Raises ConnectionClosed, upon which the worker tries again."""
        assert isinstance(message, Delivery)
        if not isinstance(message.outcome, Dead):
            message.outcome = Dead(message.failure() or Failure("Rejected", "The worker rejected the message", ""))
        self._settle(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give back messages that were fetched and not started."""
        ids = [message.options["redis_message_id"] for message in messages]
        if not ids:
            return
        try:
            self.broker.requeue(self.queue, ids)
        except redis.RedisError as error:
            raise ConnectionClosed(error) from None
        for message_id in ids:
            self._let_go(message_id)

    def _settle(self, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        try:
            self.broker.settle(message, self.queue)
        # Whatever Redis says (gone, loading, read-only, full), the outcome is kept here and settled later.
        except redis.RedisError as error:
            raise ConnectionClosed(error) from None
        self._let_go(message.redis_message_id)

    def _let_go(self, message_id: str) -> None:
        if message_id in self._held:
            self._held.discard(message_id)
            if not self._is_delay_queue:
                self.broker.slots.give_back(self.queue)

    def _fetch(self) -> None:
        wanted = self.prefetch - len(self._held) if self._is_delay_queue else self.broker.slots.take(self.queue)
        if wanted <= 0:
            return
        messages: list[bytes] = []
        try:
            messages = self.broker.fetch(self.queue, wanted)
            self.broker.link.succeeded(self.queue)
        except redis.RedisError as error:
            time.sleep(self.broker.link.failed(self.queue, error))
        finally:
            if not self._is_delay_queue:
                self.broker.slots.give_back(self.queue, wanted - len(messages))
        self._fetched.extend(messages)
