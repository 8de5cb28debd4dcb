"""What stands in Redis's place under a broker in a test: a list of what waits."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from service.broker.delivery import Lease
from service.broker.notes import Note
from service.broker.outgoing import FollowUp
from service.broker.unique_keys import Met
from service.broker.wire import Row
from service.errors import JobExists
from service.testing.clock import Clock


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message that has been sent and is to run from `due_ms` on, by its priority and then by its place."""

    queue: str
    row: Row
    due_ms: int
    place: int
    sent_ms: int


class NoRedis:
    """Refuses all that needs a server."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"{name!r} needs Redis, and the fixture `callboard` has none: test it with a server")


class MemoryWire(NoRedis):
    """Takes what a broker sends, as `service.broker.wire.Wire` does."""

    def __init__(self, clock: Clock) -> None:
        self.waiting: list[Waiting] = []
        #: What has been sent and not looked at by `take_new`.
        self._new: list[Waiting] = []
        self._clock = clock
        self._places = 0
        self._taken_until_ms: dict[str, int] = {}
        #: What jobs have said of themselves last, by job and kind.
        self._said: dict[tuple[str, str], str] = {}
        #: The results of idempotency keys, and until when they are taken.
        self._keys: dict[tuple[str, str], tuple[str, int]] = {}

    def enqueue(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int], once_within_seconds: int = 0
    ) -> bool | Met:
        """Take messages. Returns the job that the only one has met; False where the same was sent not long ago."""
        if once_within_seconds:
            entry = rows[0].entry
            if self._taken_until_ms.get(entry, -1) > self._clock.now_ms:
                return False
            self._taken_until_ms[entry] = self._clock.now_ms + once_within_seconds * 1000
        met: Met | None = None
        for row in rows:
            if (met := self._meet(queue, row)) and met.how == "rescheduled":
                return met
            self._places += 1
            now_ms = self._clock.now_ms
            self.add(Waiting(queue, row, now_ms + (row.delay_ms or 0), self._places, now_ms))
        return met or True

    def _meet(self, queue: str, row: Row) -> Met | None:
        key = row.unique.key if row.unique else None
        for each in self.waiting:
            if row.unique and each.row.unique and (each.queue, each.row.unique.key) == (queue, key):
                job_id = each.row.entry
                if row.unique.on_conflict == "keep":
                    raise JobExists(job_id, row.unique.key)
                if row.unique.on_conflict == "reschedule":
                    self._take_out(each)
                    self.add(replace(each, due_ms=self._clock.now_ms + (row.delay_ms or 0)))
                    return Met("rescheduled", job_id)
                self._take_out(each)
                return Met("replaced", job_id)
        return None

    def _take_out(self, waiting: Waiting) -> None:
        self.waiting.remove(waiting)
        if waiting in self._new:
            self._new.remove(waiting)

    def result_of_key(self, queue: str, key: str) -> str | None:
        """Return the result of the job that has taken a key, JSON, or None where it is free."""
        result, until_ms = self._keys.get((queue, key), (None, 0))
        return result if until_ms > self._clock.now_ms else None

    def take_key(self, queue: str, key: str, result: str, seconds: float) -> None:
        """Keep a key for a job that has succeeded."""
        self._keys[queue, key] = result, self._clock.now_ms + int(seconds * 1000)

    def enqueue_each(
        self, queue: str, batches: Iterable[tuple[Sequence[Row], tuple[str, int]]]
    ) -> Iterator[Met | None]:
        """Take batches of messages."""
        for rows, send in batches:
            met = self.enqueue(queue, rows, send)
            yield met if isinstance(met, Met) else None

    def find(self, job_id: str) -> None:
        """No job has a record here."""

    def note(self, queue: str, notes: Sequence[Note]) -> list[str]:
        """Take what jobs say. Returns the jobs that may say nothing: none."""
        for note in notes:
            self._said[note.lease.entry, note.kind] = note.data
        return []

    def checkpoint(self, lease: Lease) -> str | None:
        """Return the JSON that attempts before have kept."""
        return self._said.get((lease.entry, "checkpoint"))

    def progress(self, queue: str, job_id: str) -> str | None:
        """Return how far a job has said that it is."""
        return self._said.get((job_id, "progress"))

    def renew(self, queue: str, leases: Sequence[Lease], lease_ms: int) -> tuple[list[str], list[str]]:
        """No lease is ever lost, and nobody cancels."""
        return [], []

    def close(self) -> None:
        """Nothing is open."""

    def add(self, waiting: Waiting) -> None:
        """Let a message wait."""
        self.waiting.append(waiting)
        self._new.append(waiting)

    def add_follow_up(self, follow_up: FollowUp) -> None:
        """Take what a job has sent, now that it has succeeded."""
        head, _, data = follow_up.row.partition(b"\n")
        entry, priority, delay, attempt, most, named = head.decode().split(" ", 5)
        actor, _, key = named.partition("\t")
        delay_ms = None if delay == "-" else int(delay)
        row = Row(entry, actor, int(priority), delay_ms, int(attempt), int(most), data, key)
        self.enqueue(follow_up.queue, [row], ("", 0))

    def take_new(self) -> list[Waiting]:
        """Return what has been sent since the last time."""
        new, self._new = self._new, []
        return new

    def next_due(self) -> Waiting | None:
        """Return what is to run first of what is due, and let it wait no longer."""
        due = [each for each in self.waiting if each.due_ms <= self._clock.now_ms]
        if not due:
            return None
        first = min(due, key=lambda each: (each.row.priority, each.place))
        self.waiting.remove(first)
        return first


class DirectNotes:
    """Takes what jobs say at once, as `service.broker.notes.Notes` does from a thread."""

    def __init__(self, wire: MemoryWire) -> None:
        self._wire = wire

    def progress(self, lease: Lease, progress: dict[str, Any]) -> None:
        """Take how far a job is."""
        self._wire.note(lease.queue, [Note(lease, "progress", json.dumps(progress))])

    def line(self, lease: Lease, line: dict[str, Any]) -> None:
        """A line of a job's log is in the test's own."""

    def close(self, timeout_seconds: float) -> None:
        """Nothing is open."""
