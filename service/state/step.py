"""One thing that has happened to a job, as it is read from the table of events: for timelines and for streams."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from service.state.states import State


class Mark(NamedTuple):
    """The place of an event among those of its job: it comes after all with a lower number."""

    sequence: int
    copy: int

    def __str__(self) -> str:
        return f"{self.sequence}-{self.copy}"

    @classmethod
    def parse(cls, written: str) -> "Mark":
        """Read a mark as it was written. Raises ValueError."""
        sequence, _, copy = written.partition("-")
        if not (sequence.isascii() and sequence.isdecimal() and copy.isascii() and copy.isdecimal()):
            raise ValueError(f"{written!r} is no mark")
        mark = cls(int(sequence), int(copy))
        if max(mark) >= 2**63:
            raise ValueError(f"{written!r} is no mark")
        return mark


NOTHING_SEEN = Mark(0, -1)


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a job. `state` is None of progress, log lines and deletions, whose `data` says it."""

    mark: Mark
    kind: str
    at: datetime
    state: State | None
    attempt: int
    worker: str | None = None
    run_at: datetime | None = None
    reason: str | None = None
    #: The idempotency key that it waits for, of a waiting one.
    key: str | None = None
    error: dict[str, str] | None = None
    data: Any = None

    @classmethod
    def of(cls, row: Any) -> "Step":
        """Read a row of the table of events."""
        return cls(
            Mark(row.sequence, row.copy),
            row.kind,
            row.at,
            State(row.state) if row.state else None,
            row.attempt,
            row.worker,
            row.run_at,
            row.reason,
            row.key if row.kind == "waiting" else None,
            row.error,
            row.data,
        )
