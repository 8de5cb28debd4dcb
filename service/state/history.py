"""What the API asks about jobs: the database's history, with what Redis knows of the rows that are not final."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, bindparam, select

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, HistoryUnavailable
from service.state.database import reaching
from service.state.endings import Endings
from service.state.following import Followed, steps_since
from service.state.pause import Pause
from service.state.queries import (
    Count,
    Cursor,
    Filter,
    Page,
    count_jobs,
    list_jobs,
    message_fields_of,
    timeline_of,
)
from service.state.snapshot import COLUMNS, Snapshot
from service.state.states import State
from service.state.step import Mark, Step
from service.state.tables import jobs

LOOK_UP_SECONDS = 2.5

#: An id that was sent again long after its job had ended has several rows.
_STORED = (
    select(*(jobs.c[name] for name in COLUMNS))
    .where(jobs.c.job_id == bindparam("job_id"))
    .order_by(jobs.c.last_sequence.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Story:
    """All that is stored of a job. `message` has personal data in it; of the children there are up to some."""

    job: Snapshot
    steps: list[Step]
    message: dict[str, Any] | None
    children: list[Snapshot]


class History:
    """Finds jobs. A job can be read at once after it was sent, also while the projector or the database is down."""

    def __init__(self, engine: Engine, broker: RedisBroker) -> None:
        self._engine = engine
        self._broker = broker
        self._postgresql = Pause(HistoryUnavailable)
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))
        self.endings = Endings(engine, broker, self._postgresql)

    @property
    def engine(self) -> Engine:
        """The database that it asks."""
        return self._engine

    def find(self, job_id: UUID) -> Snapshot | None:
        """Return a job as it is now, or None where nobody knows it.

        Raises HistoryUnavailable or BrokerUnavailable where the one that is down might know more.
        """
        try:
            stored = self._stored(job_id)
        except HistoryUnavailable:
            live = self._live(job_id)
            if live is None:
                raise
            return live
        if stored is not None and stored.state is State.SUCCEEDED:
            return stored  # a dead job may have been replayed since
        # Where Redis can't be asked this raises, whatever is stored: the job may have ended since, and been seen so.
        live = self._live(job_id)
        if live is None:
            # The projector may have stored the job, and dropped it from Redis, between the two looks.
            return self._stored(job_id)
        # Redis was asked after the database, so it knows at least as much.
        return live.after(stored)

    def progress_of(self, snapshot: Snapshot) -> Any:
        """Return how far a job says it is, {"done", "total", "note"}, or None where nothing is known."""
        try:
            with self._redis.around():
                found = self._broker.find_progress(str(snapshot.job_id), snapshot.queue)
            return None if found is None else json.loads(found)
        except (BrokerUnavailable, ValueError):
            return None  # its state is known all the same

    def page(self, wanted: Filter, cursor: Cursor | None, limit: int) -> Page:
        """Return a page of jobs as they are now: one that has left the filter's states meanwhile is left out.

        Raises HistoryUnavailable, and BrokerUnavailable where rows are not final.
        """
        with self._postgresql.around():
            page = list_jobs(self._engine, wanted, cursor, limit)
        unsure: dict[str, list[str]] = defaultdict(list)
        for row in page.jobs:
            if row.state is not State.SUCCEEDED:
                unsure[row.queue].append(str(row.job_id))
        with self._redis.around():
            live = {UUID(each["job_id"]): Snapshot.from_event(each) for each in self._broker.find_records(unsure)}
        merged = [live[row.job_id].after(row) if row.job_id in live else row for row in page.jobs]
        return Page([job for job in merged if not wanted.states or job.state in wanted.states], page.cursor)

    def count(self, wanted: Filter) -> Count:
        """Count the jobs that a filter takes. Raises HistoryUnavailable."""
        with self._postgresql.around():
            return count_jobs(self._engine, wanted)

    def story_of(self, job: Snapshot, most_children: int, tenant: str | None = None) -> Story:
        """Return all that is stored of a job; of its children those of a tenant, or all. Raises HistoryUnavailable."""
        with self._postgresql.around():
            return Story(
                job,
                timeline_of(self._engine, job.job_id),
                message_fields_of(self._engine, job.job_id),
                list_jobs(self._engine, Filter(parent_id=job.job_id, tenant=tenant), limit=most_children).jobs,
            )

    def steps_since(self, seen: Mapping[Followed, Mark]) -> dict[UUID, list[Step]]:
        """Return what has happened to jobs since each was looked at last. Raises HistoryUnavailable."""
        with self._postgresql.around():
            return steps_since(self._engine, seen)

    def ping(self) -> None:
        """Raise HistoryUnavailable where the database does not answer."""
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.connect() as connection:
            connection.execute(select(1))

    def _stored(self, job_id: UUID) -> Snapshot | None:
        with self._postgresql.around(), reaching(self._engine, LOOK_UP_SECONDS), self._engine.connect() as connection:
            row = connection.execute(_STORED, {"job_id": job_id}).mappings().first()
        return None if row is None else Snapshot.from_row(dict(row))

    def _live(self, job_id: UUID) -> Snapshot | None:
        with self._redis.around():
            record = self._broker.find_record(str(job_id))
        return None if record is None else Snapshot.from_event(record)
