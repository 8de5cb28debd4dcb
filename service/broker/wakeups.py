"""Wakes the consumers of an idle process: one subscription, one channel, the queue's name as the message.

Of a job that is cancelled the message is `cancel QUEUE TOKEN ENTRY`.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Event, Thread
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from service.broker.link import FIRST_DELAY_SECONDS

logger = logging.getLogger(__name__)


class Wakeups:
    """Lets a consumer wait for work in its queue. Without a subscription it waits its time out."""

    def __init__(self, client: Any, channel: str, on_cancel: Callable[[str, str, str], None] | None = None) -> None:
        self._client = client
        self._on_cancel = on_cancel
        self._channel = channel
        self._condition = Condition()
        self._calls: dict[str, int] = defaultdict(int)
        self._by_redis: set[str] = set()
        self._stop = Event()
        #: What was logged of a failure that lasts.
        self._trouble: str | None = None
        self.subscribed = False

    def start(self) -> None:
        """Listen until stopped."""
        self._stop = Event()
        self.subscribed = False
        Thread(target=self._run, args=(self._stop,), name="wake-ups", daemon=True).start()

    def stop(self) -> None:
        """Listen no more, and wake all."""
        self._stop.set()
        self.wake_all()

    def count(self, queue: str) -> int:
        """Return a number to give to `wait`: ask for it before the look that finds nothing."""
        with self._condition:
            return self._calls[queue] + self._calls["*"]

    def wait(self, queue: str, seen: int, timeout_seconds: float) -> None:
        """Wait until the queue is called more often than `seen`, or the time is over."""
        with self._condition:
            self._condition.wait_for(lambda: self._calls[queue] + self._calls["*"] != seen, timeout_seconds)

    def was_called_by_redis(self, queue: str) -> bool:
        """Whether Redis has called this queue's consumer since this was asked last: nobody else was called then."""
        with self._condition:
            called = queue in self._by_redis
            self._by_redis.discard(queue)
            return called

    def wake(self, queue: str) -> None:
        """Call a queue's consumer of this process."""
        with self._condition:
            self._calls[queue] += 1
            self._condition.notify_all()

    def wake_all(self) -> None:
        """Call every consumer of this process."""
        self.wake("*")

    def _run(self, stop: Event) -> None:
        while not stop.is_set():
            subscription: Any = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                subscription.subscribe(self._channel)
                self._listen(subscription, stop)
            except Exception as error:  # noqa: BLE001 - of all kinds where the connection is closed under us, by parser and moment
                if self.subscribed:
                    self.subscribed = False
                    self.wake_all()  # nobody can call them now: they ask by themselves, and find an outage at once
                if not stop.is_set():
                    self._note_trouble(error)
                stop.wait(FIRST_DELAY_SECONDS)
            finally:
                with suppress(Exception):
                    subscription.close()

    def _listen(self, subscription: Any, stop: Event) -> None:
        while not stop.is_set():
            message = subscription.get_message(timeout=1.0)
            if message is None:
                continue
            if message["type"] == "subscribe":
                self.subscribed = True
                self._note_success()
                self.wake_all()  # what was called while nobody listened
            elif message["type"] == "message":
                self._called(message["data"].decode(errors="replace"))

    def _called(self, message: str) -> None:
        match message.split(" "):
            case ["cancel", queue, token, entry] if self._on_cancel:
                try:
                    self._on_cancel(queue, entry, token)
                except Exception:
                    logger.exception("A job can't be cancelled at once", extra={"job_id": entry})
            case _:
                with self._condition:
                    self._by_redis.add(message)
                self.wake(message)

    def _note_trouble(self, error: Exception) -> None:
        # Each attempt may say something else of one outage; what the server refuses it refuses in the same words.
        trouble = str(error) if isinstance(error, redis.ResponseError) else "outage"
        if trouble == self._trouble:
            return
        self._trouble = trouble
        advice = ""
        if isinstance(error, NoPermissionError):
            pattern = f"{self._channel.rpartition(':wake:')[0]}:wake:*"
            advice = f". Give the user the ACL rights +subscribe &{pattern}"
        logger.warning("Redis can't call this worker, which asks every second instead: %s%s", error, advice)

    def _note_success(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            logger.info("Redis can call this worker again")
