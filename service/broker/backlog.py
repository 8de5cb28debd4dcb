"""What the database has not taken yet: kept under a cap, so that an outage of PostgreSQL does not fill Redis.

Folding is called by whoever is up: the projector while it can not store, and one thread of each worker process, which
finds nothing to do while the projector works.
"""

import logging
from collections.abc import Iterator
from threading import Condition, Thread
from typing import TYPE_CHECKING

import redis

from service.broker.keys import Keys
from service.broker.wire import Folded

if TYPE_CHECKING:
    from service.broker.process import Process

#: How often a worker looks at each of its queues: rarely, since an idle one is to cost next to nothing, and more often
#: once one of them holds a good part of what it may.
LOOK_SECONDS = 30.0
BUSY_LOOK_SECONDS = 5.0
#: A refusal of sends ends by itself where nobody looks any more.
REFUSAL_SECONDS = 60.0
#: Calls of one round for one queue.
MOST_CALLS = 500

logger = logging.getLogger(__name__)


def parts_of(record: bytes) -> Iterator[tuple[str, str, str, str | None, bytes]]:
    """Read a folded record as its events: id, kind, at, worker and value. Raises ValueError."""
    start = record.index(b"\n") + 1
    while start < len(record):
        end = record.index(b"\n", start)
        entry_id, kind, at, worker, length = record[start:end].decode().split(" ")
        start = end + 1 + int(length)
        yield entry_id, kind, at, None if worker == "-" else worker, record[end + 1 : start]


class Backlog:
    """Keeps the events of the queues that it serves under the cap."""

    def __init__(self, broker: "Process", most_bytes: int) -> None:
        self._broker = broker
        self._most_bytes = most_bytes
        self._queues: set[str] = set()
        self._refused: set[str] = set()
        self._used_bytes: dict[str, int] = {}
        self._cursors: dict[str, int] = {}
        self._condition = Condition()
        self._closing = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Look now and then, from a thread."""
        self._closing = False
        self._thread = Thread(target=self._run, name="backlog", daemon=True)
        self._thread.start()

    def serve(self, queue: str) -> None:
        """Look after a queue too."""
        with self._condition:
            self._queues.add(queue)

    def stop(self) -> None:
        """Look no more."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def relieve(self, queue: str) -> Folded:
        """Fold events of a queue while they are over half of the cap. Raises redis.RedisError."""
        wire = self._broker.wire
        folded = wire.fold(queue, self._most_bytes // 2, self._most_bytes, refusal_ms=int(REFUSAL_SECONDS * 1000))
        for _ in range(MOST_CALLS):
            if not folded.entries or self._closing:
                break
            folded = wire.fold(queue, self._most_bytes // 2, self._most_bytes, refusal_ms=int(REFUSAL_SECONDS * 1000))
        self._tell(queue, folded)
        self._used_bytes[queue] = folded.used_bytes
        return folded

    def _tell(self, queue: str, folded: Folded) -> None:
        if folded.is_full and queue not in self._refused:
            about = {"queue": queue, "unstored_bytes": folded.used_bytes}
            logger.error("Sends are refused as full until the projector stores what has happened", extra=about)
            self._refused.add(queue)
        elif not folded.is_full and queue in self._refused:
            logger.info("Sends are taken again", extra={"queue": queue})
            self._refused.discard(queue)

    def _run(self) -> None:
        turn = 0
        while True:
            with self._condition:
                queues = sorted(self._queues)
                # One after another and not all at once: the looks of many idle workers are spread.
                if self._condition.wait_for(lambda: self._closing, self._look_seconds() / max(len(queues), 1)):
                    return
            if not queues:
                continue
            turn = (turn + 1) % len(queues)
            try:
                self.relieve(queues[turn])
            except redis.RedisError as error:
                logger.warning("Events can't be folded now: %s", error, extra={"queue": queues[turn]})

    def _look_seconds(self) -> float:
        is_busy = any(used > self._most_bytes // 4 for used in self._used_bytes.values())
        return BUSY_LOOK_SECONDS if is_busy else LOOK_SECONDS

    def folded(self, queue: str, count: int) -> list[tuple[bytes, bytes]]:
        """Return some entries of a queue with their records, or none where there are none. Raises redis.RedisError.

        Each call goes on where the one before has ended: from the start, a scan of a hash that was large finds nothing
        but the room of what has been taken out, and gives up.
        """
        name = Keys(self._broker.namespace, queue).folded
        if not self._broker.client.hlen(name):
            return []
        cursor = self._cursors.get(queue, 0)
        is_whole = cursor == 0
        while True:
            cursor, found = self._broker.client.hscan(name, cursor, count=count)
            self._cursors[queue] = cursor
            if found or (is_whole and not cursor):
                return list(found.items())
            is_whole = is_whole or not cursor

    def forget(self, queue: str, records: list[tuple[bytes, bytes]]) -> None:
        """Drop records that are stored elsewhere. Raises redis.RedisError."""
        self._broker.wire.unfold(queue, [(entry, record.partition(b"\n")[0]) for entry, record in records])
