"""What the API asks about jobs: the database's history, with what Redis knows of the rows that are not final."""

import json
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, bindparam, select

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, HistoryUnavailable
from service.state.database import reaching
from service.state.pause import Pause
from service.state.snapshot import COLUMNS, Snapshot
from service.state.states import State
from service.state.tables import jobs

LOOK_UP_SECONDS = 2.5

#: An id that was sent again long after its job had ended has several rows.
_STORED = (
    select(*(jobs.c[name] for name in COLUMNS))
    .where(jobs.c.job_id == bindparam("job_id"))
    .order_by(jobs.c.last_sequence.desc())
    .limit(1)
)


class History:
    """Finds jobs. A job can be read at once after it was sent, also while the projector or the database is down."""

    def __init__(self, engine: Engine, broker: RedisBroker) -> None:
        self._engine = engine
        self._broker = broker
        self._postgresql = Pause(HistoryUnavailable)
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))

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
