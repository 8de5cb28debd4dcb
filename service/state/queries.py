"""What is asked of many jobs: a page of those that a filter takes, their number, and the timeline of one.

A page goes on from where the one before has ended, by time of creation and id, the newest first. A job that is sent
meanwhile is newer than all pages that follow, so that none is skipped and none comes twice.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Engine, func, select, tuple_

from service.broker.outcome import storable_json
from service.state.database import reaching
from service.state.snapshot import COLUMNS, Snapshot
from service.state.states import State
from service.state.step import Step
from service.state.tables import events, jobs

WITHIN_SECONDS = 5.0
MOST_LISTED = 1000
MOST_COUNTED = 10_000
MOST_TOLD = 10_000


class Cursor(NamedTuple):
    """The last job of a page: the next one begins behind it."""

    created_at: datetime
    job_id: UUID


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are meant: those that fit all that is given. Times are from (inclusive) and before (exclusive).

    `payload` names keyword arguments of the job and their values, as JSON has them; only payloads up to 16 KiB are
    searched.
    """

    states: frozenset[State] = frozenset()
    actor: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    parent_id: UUID | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    ended_from: datetime | None = None
    ended_before: datetime | None = None
    payload: dict[str, Any] = field(default_factory=dict[str, Any])

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """The conditions of SQL that say the same."""
        columns = jobs.c
        if self.states:
            yield columns.state.in_(sorted(self.states))
        for column, wanted in (
            (columns.type, self.actor),
            (columns.queue, self.queue),
            (columns.tenant, self.tenant),
            (columns.key, self.key),
            (columns.parent_id, self.parent_id),
        ):
            if wanted is not None:
                yield column == wanted
        for column, start, end in (
            (columns.created_at, self.created_from, self.created_before),
            (columns.completed_at, self.ended_from, self.ended_before),
        ):
            if start is not None:
                yield column >= start
            if end is not None:
                yield column < end
        if self.ended_from is not None:
            yield columns.state.in_([State.SUCCEEDED, State.DEAD, State.CANCELLED])
        if self.payload:
            yield columns.payload.contains(storable_json(self.payload))


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs, the newest first. `cursor` is where the next page begins, or None where this is the last."""

    jobs: list[Snapshot]
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs there are: exactly, or more than MOST_COUNTED."""

    number: int
    is_exact: bool


def list_jobs(engine: Engine, wanted: Filter, cursor: Cursor | None = None, limit: int = 50) -> Page:
    """Return up to `limit` jobs behind the cursor, without results and payloads. Raises HistoryUnavailable."""
    limit = min(max(limit, 1), MOST_LISTED)
    columns = jobs.c
    query = select(*(columns[name] for name in COLUMNS if name != "result")).where(*wanted.conditions())
    if cursor is not None:
        # The first part, which says nothing new, lets whole partitions be left out.
        query = query.where(columns.created_at <= cursor.created_at)
        query = query.where(tuple_(columns.created_at, columns.job_id) < tuple_(cursor.created_at, cursor.job_id))
    query = query.order_by(columns.created_at.desc(), columns.job_id.desc()).limit(limit + 1)
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    found = [Snapshot.from_row({"result": None, **row}) for row in rows[:limit]]
    more = len(rows) > limit
    return Page(found, Cursor(found[-1].created_at, found[-1].job_id) if more else None)


def count_jobs(engine: Engine, wanted: Filter, most: int = MOST_COUNTED) -> Count:
    """Count jobs, and stop at `most`. Raises HistoryUnavailable."""
    some = select(jobs.c.job_id).where(*wanted.conditions()).limit(most + 1).subquery()
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        number = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return Count(min(number, most), number <= most)


def timeline_of(engine: Engine, job_id: UUID) -> list[Step]:
    """Return what happened to a job, in order: the first MOST_TOLD events. Raises HistoryUnavailable."""
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        created = connection.execute(select(jobs.c.created_at).where(jobs.c.job_id == job_id)).scalars().all()
        of_job = select(events).where(events.c.job_id == job_id, events.c.created_at.in_(created))
        rows = connection.execute(of_job.order_by(events.c.sequence, events.c.copy).limit(MOST_TOLD)).all()
    return [Step.of(row) for row in rows]


def message_fields_of(engine: Engine, job_id: UUID) -> dict[str, Any] | None:
    """Return the message of a job as its fields, or None where nobody has it. Raises HistoryUnavailable.

    It holds personal data: whoever shows it masks it first.
    """
    query = select(jobs.c.message).where(jobs.c.job_id == job_id).order_by(jobs.c.last_sequence.desc()).limit(1)
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        message = connection.execute(query).scalar()
    try:
        return None if message is None else json.loads(message)
    except ValueError:
        return None  # of another encoder
