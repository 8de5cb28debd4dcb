"""The consumer: fetches the messages of one queue, hands them to Dramatiq's worker, and passes on how they ended."""

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import redis
from dramatiq.broker import Consumer, MessageProxy

from service.broker.delivery import Delivery
from service.broker.outcome import Dead, Failure, Reason, RetryLater

if TYPE_CHECKING:
    from service.broker.working import Working


DRAINING_SECONDS = 0.1


class QueueConsumer(Consumer):
    """Iterates over one queue. None means that there is nothing now.

    It asks Redis when it is woken, when something comes due or lapses, and at least every third of a lease.
    """

    def __init__(self, broker: "Working", queue: str, timeout_ms: int) -> None:
        self._broker = broker
        self._queue = queue
        self._timeout_seconds = timeout_ms / 1000
        self._fetched: deque[Delivery] = deque()
        self._poll_at = 0.0
        #: When something comes due, or it is time to look whether anything has.
        self._due_at = inf
        self._seen = -1
        #: Whether a fetch may have leased messages and its reply never came.
        self._is_unsure = False
        broker.link.consumer_started(queue)
        broker.pulse.beat(queue)

    def __next__(self) -> Delivery | None:
        self._broker.pulse.beat(self._queue)
        if self._broker.draining:
            # What a fetch that was under way has brought: no thread of this process will run it.
            self.close()
            self._broker.life.release_unstarted()
            self._pass_on()
            time.sleep(DRAINING_SECONDS)
            return None
        if not self._fetched and self._is_time():
            self._fetch()
        return self._fetched.popleft() if self._fetched else None

    def ack(self, message: MessageProxy) -> None:
        """Pass on the outcome of a message that did not die."""
        assert isinstance(message, Delivery)
        self._broker.finish(message)
        if isinstance(message.outcome, RetryLater):
            self._broker.emit_after("enqueue", message.outcome.message, message.outcome.delay_ms)

    def nack(self, message: MessageProxy) -> None:
        """Pass on the death of a message."""
        assert isinstance(message, Delivery)
        if not isinstance(message.outcome, Dead):
            failure = message.failure() or Failure("Rejected", "The worker rejected the message", "")
            message.outcome = Dead(failure, Reason.FAILED if message.is_known else Reason.UNKNOWN_ACTOR)
        self._broker.finish(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give back messages that were fetched and not started."""
        self._broker.release([message for message in messages if isinstance(message, Delivery)])

    def close(self) -> None:
        """Give back what was fetched and not handed over."""
        self._broker.release(list(self._fetched))
        self._fetched.clear()

    def _is_time(self) -> bool:
        remaining = self._poll_at - time.monotonic()
        if remaining > 0:
            self._broker.wakeups.wait(self._queue, self._seen, min(remaining, self._timeout_seconds))
        return time.monotonic() >= self._poll_at or self._broker.wakeups.count(self._queue) != self._seen

    def _pass_on(self, *, is_due: bool = False) -> None:
        # Nobody else was called, or will ask: Redis knows of this worker that it asks when the message is due.
        if self._broker.wakeups.was_called_by_redis(self._queue) or is_due:
            with suppress(redis.RedisError):  # the poll of whoever is idle is left
                self._broker.pass_on(self._queue)

    def _fetch(self) -> None:
        self._seen = self._broker.wakeups.count(self._queue)
        wanted = self._broker.take(self._queue)
        if wanted <= 0:
            # Whoever finishes a job of this queue calls.
            self._poll_at = time.monotonic() + self._timeout_seconds
            self._broker.link.not_needed(self._queue)
            self._pass_on(is_due=time.monotonic() >= self._due_at)
            self._due_at = inf
            return
        deliveries: list[Delivery] = []
        try:
            self._broker.wakeups.was_called_by_redis(self._queue)  # this is the answer to it
            if self._is_unsure:
                self._broker.release_unreceived(self._queue)
                self._is_unsure = False
            deliveries, wait_seconds = self._broker.fetch(self._queue, wanted)
            self._broker.link.succeeded(self._queue)
            self._poll_at = time.monotonic() + wait_seconds
            self._due_at = self._poll_at if wait_seconds else inf
        except redis.RedisError as error:
            self._is_unsure = True
            self._poll_at = time.monotonic() + self._broker.link.failed(self._queue, error)
        finally:
            self._broker.give_back(self._queue, wanted - len(deliveries))
        self._hand_over(deliveries)

    def _hand_over(self, deliveries: list[Delivery]) -> None:
        work_queue = self._broker.life.work_queue
        if work_queue is None or self._broker.draining:
            self._fetched.extend(deliveries)
            return
        work_queue.put_all([delivery for delivery in deliveries if delivery.is_known])
        # The others are Dramatiq's to refuse.
        self._fetched.extend(delivery for delivery in deliveries if not delivery.is_known)
