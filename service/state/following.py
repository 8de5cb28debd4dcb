"""What has happened to many jobs since each was looked at last: one query for all who follow them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Engine, text

from service.state.database import reaching
from service.state.states import State

WITHIN_SECONDS = 2.5
MOST_AT_ONCE = 5000


class Mark(NamedTuple):
    """The newest event that a follower has seen: it comes after all with a lower number."""

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


class Followed(NamedTuple):
    """A job, and what has been seen of it."""

    created_at: datetime
    job_id: UUID


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a followed job. `state` is None of progress and log lines, whose `data` says it."""

    mark: Mark
    kind: str
    at: datetime
    state: State | None
    attempt: int
    worker: str | None
    run_at: datetime | None
    reason: str | None
    error: dict[str, str] | None
    data: Any


_QUERY = text(
    """
    SELECT e.job_id, e.sequence, e.copy, e.kind, e.at, e.state, e.attempt, e.worker, e.run_at, e.reason, e.error, e.data
    FROM unnest(
        CAST(:created AS timestamptz[]), CAST(:ids AS uuid[]), CAST(:sequences AS bigint[]), CAST(:copies AS bigint[])
    ) AS seen (created_at, job_id, sequence, copy)
    JOIN callboard_events e
        ON e.created_at = seen.created_at AND e.job_id = seen.job_id
        AND (e.sequence, e.copy) > (seen.sequence, seen.copy)
    ORDER BY e.sequence, e.copy
    LIMIT :most
    """
)


def steps_since(engine: Engine, seen: Mapping[Followed, Mark]) -> dict[UUID, list[Step]]:
    """Return for each job what has happened since, in order: no more than MOST_AT_ONCE together.

    Raises HistoryUnavailable.
    """
    if not seen:
        return {}
    parameters: dict[str, Any] = {
        "created": [job.created_at for job in seen],
        "ids": [job.job_id for job in seen],
        "sequences": [mark.sequence for mark in seen.values()],
        "copies": [mark.copy for mark in seen.values()],
        "most": MOST_AT_ONCE,
    }
    found: dict[UUID, list[Step]] = {}
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        for row in connection.execute(_QUERY, parameters):
            step = Step(
                Mark(row.sequence, row.copy),
                row.kind,
                row.at,
                State(row.state) if row.state else None,
                row.attempt,
                row.worker,
                row.run_at,
                row.reason,
                row.error,
                row.data,
            )
            found.setdefault(row.job_id, []).append(step)
    return found
