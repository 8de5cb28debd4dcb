"""Tells of every death: calls `after_death(broker, letter)` of each middleware that has it.

The script that makes a dead letter notes in the same step that it is untold, and the note goes when all have been told.
A worker takes the notes before it tells, and one that is killed meanwhile keeps them for CLAIM_SECONDS: then another
worker of the queue tells, maybe for the second time.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis

from service.broker import dead_letter
from service.broker.background import Background
from service.broker.dead_letter import DeadLetter
from service.broker.keys import Keys
from service.errors import BrokerUnavailable

if TYPE_CHECKING:
    from service.broker.process import Process

#: How often to look for what others have left untold. An idle worker is told of it by its fetch, and does not wait.
LOOK_SECONDS = 300.0
CLAIM_SECONDS = 15.0
CHUNK = 20

logger = logging.getLogger(__name__)


class NotYet(Exception):
    """Raised by an `after_death`: this process can't tell of the death, and another may."""


class Obituaries(Background):
    """Works on the queues that this process consumes. Closed, it leaves to others what Redis does not take."""

    thread_name = "obituaries"

    def __init__(self, broker: "Process") -> None:
        super().__init__()
        self._broker = broker
        self._queues: set[str] = set()
        self._has_news = False

    def serve(self, queue: str) -> None:
        """Look after the deaths of a queue too."""
        with self._condition:
            self._queues.add(queue)
            self._has_news = True
            self._condition.notify()

    def wake(self) -> None:
        """Somebody has died."""
        with self._condition:
            self._has_news = True
            self._condition.notify()

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._condition:
                self._condition.wait_for(lambda: self._has_news or self._closing, LOOK_SECONDS)
                self._has_news = False
                closing = self._closing
                queues = list(self._queues)
            for queue in queues:
                try:
                    self._tell_all(queue)
                except (redis.RedisError, BrokerUnavailable) as error:
                    logger.warning("Deaths can't be told of now: %s", error, extra={"queue": queue})
                except Exception:
                    logger.exception("Deaths can't be told of", extra={"queue": queue})

    def _tell_all(self, queue: str) -> None:
        keys, client = Keys(self._broker.namespace, queue), self._broker.client
        while deaths := self._broker.wire.claim(queue, CHUNK, for_ms=int(CLAIM_SECONDS * 1000)):
            entries = [death.partition(b" ")[2] for death in deaths]
            for death, entry, record in zip(deaths, entries, client.hmget(keys.dead_letters, entries), strict=True):
                try:
                    # A dead letter that was replayed or deleted meanwhile is none any more.
                    if record and (letter := _read(queue, entry, record, client.hget(keys.dead_messages, entry))):
                        self._tell(letter)
                except NotYet:
                    continue
                client.zrem(keys.untold, death)

    def _tell(self, letter: DeadLetter) -> None:
        for middleware in self._broker.middleware:
            after_death: Any = getattr(middleware, "after_death", None)
            if after_death:
                try:
                    after_death(self._broker, letter)
                except (NotYet, redis.RedisError, BrokerUnavailable):
                    raise
                except Exception:
                    logger.exception("after_death of %r has failed", middleware, extra={"job_id": letter.job_id})


def _read(queue: str, entry: bytes, record: bytes, stored: bytes | None) -> DeadLetter | None:
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return dead_letter.read(entry, queue, record, stored or b"")
    return None
