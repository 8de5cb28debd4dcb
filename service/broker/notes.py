"""Progress and log lines of running jobs on their way to Redis, in batches, from a thread of its own.

A job never waits for it, and never fails by it: of progress the newest is kept until it can be sent, of lines so many.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import redis

from service.broker.background import Background
from service.broker.delivery import Lease

COMPANY_SECONDS = 0.1
BATCH = 200
#: Lines that wait; of more, the oldest are dropped, and that is said.
MOST_LINES = 10_000
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Note(NamedTuple):
    """One thing that a job says, as note.lua takes it."""

    lease: Lease
    kind: str
    data: str

    def packed(self) -> bytes:
        """Return it as note.lua takes it."""
        lease = self.lease
        return f"{lease.entry} {lease.token} {self.kind} {lease.created_ms} {lease.attempt}\n{self.data}".encode()


class Notes(Background):
    """Sends notes. `carry_out` sends those of one queue, and raises redis.RedisError."""

    thread_name = "notes"

    def __init__(self, carry_out: Callable[[str, list[Note]], None]) -> None:
        super().__init__()
        self._carry_out = carry_out
        self._progress: dict[Lease, Note] = {}
        self._lines: deque[tuple[Lease, dict[str, Any]]] = deque(maxlen=MOST_LINES)
        self._dropped = 0

    def progress(self, lease: Lease, progress: dict[str, Any]) -> None:
        """Keep how far a job is, in place of what it has said before."""
        with self._condition:
            self._progress[lease] = Note(lease, "progress", json.dumps(progress))
            self._begin()

    def line(self, lease: Lease, line: dict[str, Any]) -> None:
        """Keep a line of a job's log."""
        with self._condition:
            self._dropped += len(self._lines) == MOST_LINES
            self._lines.append((lease, line))
            self._begin()

    def _begin(self) -> None:
        # Most processes never need the thread.
        if self._thread is None or not self._thread.is_alive():
            self.start()
        self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._progress or self._lines or self._closing)
                if not (self._progress or self._lines):
                    return
                self._condition.wait_for(lambda: self._closing, COMPANY_SECONDS)
            if not self._send():
                if self._closing:
                    return
                time.sleep(RETRY_SECONDS)

    def _send(self) -> bool:
        for queue, notes in self._taken().items():
            try:
                self._carry_out(queue, notes)
            except redis.RedisError as error:
                logger.warning("What jobs say can't be sent now: %s", error, extra={"queue": queue})
                self._keep(notes)
                return False
        return True

    def _taken(self) -> dict[str, list[Note]]:
        with self._condition:
            lines: dict[Lease, list[dict[str, Any]]] = {}
            for _ in range(min(len(self._lines), BATCH)):
                lease, line = self._lines.popleft()
                lines.setdefault(lease, []).append(line)
            progress = [self._progress.pop(lease) for lease in list(self._progress)[:BATCH]]
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d lines of jobs' logs were dropped: Redis does not take them fast enough", dropped)
        notes: dict[str, list[Note]] = {}
        for note in [*(Note(lease, "log", json.dumps(some)) for lease, some in lines.items()), *progress]:
            notes.setdefault(note.lease.queue, []).append(note)
        return notes

    def _keep(self, notes: list[Note]) -> None:
        with self._condition:
            for note in reversed(notes):
                if note.kind == "progress":
                    self._progress.setdefault(note.lease, note)
                    continue
                lines = json.loads(note.data)
                room = MOST_LINES - len(self._lines)
                self._dropped += max(len(lines) - room, 0)
                self._lines.extendleft((note.lease, line) for line in reversed(lines[-room:] if room else []))
