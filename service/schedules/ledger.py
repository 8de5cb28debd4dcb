"""What PostgreSQL keeps of schedules: a copy of each state, and a row for each job, which is there once.

Redis decides. This is what is left of its decisions where Redis was emptied: a job that was sent is not sent again.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from service.errors import HistoryUnavailable
from service.schedules.state import Run, ScheduleState
from service.schedules.tables import runs, states
from service.state.database import reaching
from service.state.pause import Pause

#: A due time waits no longer for PostgreSQL: it goes out by what Redis knows.
WAIT_SECONDS = 1.0
KEPT_DAYS = 7
MOST_PRUNED = 10_000


class Ledger:
    """Reads and writes it. Every method raises HistoryUnavailable, soon after a wait for nothing at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pause = Pause(HistoryUnavailable)

    def claim(self, name: str, of: Sequence[Run], state: ScheduleState) -> set[str]:
        """Note what is going to be sent, and the state that says so. Returns the ids of jobs that were sent before."""
        rows = [
            {"name": name, "scheduled_for": run.scheduled_for, "job_id": UUID(run.job_id), "kind": run.kind}
            for run in of
        ]
        ids = [UUID(run.job_id) for run in of]
        with self._pause.around(), reaching(self._engine, WAIT_SECONDS), self._engine.begin() as connection:
            connection.execute(insert(runs).on_conflict_do_nothing(), rows)
            _keep(connection, name, state)
            sent = select(runs.c.job_id).where(runs.c.name == name, runs.c.job_id.in_(ids), runs.c.sent_at.is_not(None))
            return {str(job_id) for job_id in connection.scalars(sent)}

    def note_sent(self, name: str, job_ids: Iterable[str]) -> None:
        """Note that jobs are in their queues."""
        ids = [UUID(job_id) for job_id in job_ids]
        change = update(runs).where(runs.c.name == name, runs.c.job_id.in_(ids)).values(sent_at=func.now())
        with self._pause.around(), reaching(self._engine, WAIT_SECONDS), self._engine.begin() as connection:
            connection.execute(change)

    def keep(self, name: str, state: ScheduleState) -> None:
        """Store a copy of a state where it is newer than the one that is stored."""
        with self._pause.around(), reaching(self._engine, WAIT_SECONDS), self._engine.begin() as connection:
            _keep(connection, name, state)

    def state_of(self, name: str) -> ScheduleState | None:
        """Return the copy of a state."""
        with self._pause.around(), reaching(self._engine, WAIT_SECONDS), self._engine.connect() as connection:
            found: Any = connection.scalar(select(states.c.state).where(states.c.name == name))
        try:
            return None if found is None else ScheduleState.from_json(json.dumps(found))
        except ValueError:
            return None

    def runs_of(self, name: str, most: int) -> list[dict[str, Any]]:
        """Return the newest jobs of a schedule: scheduled_for, job_id, kind, sent_at."""
        wanted = select(runs.c.scheduled_for, runs.c.job_id, runs.c.kind, runs.c.sent_at).where(runs.c.name == name)
        with self._pause.around(), reaching(self._engine, WAIT_SECONDS), self._engine.connect() as connection:
            rows = connection.execute(wanted.order_by(runs.c.scheduled_for.desc()).limit(most)).mappings()
            return [dict(row) for row in rows]

    def prune(self, before: datetime) -> None:
        """Remove rows that are older, a bounded number of them."""
        key = tuple_(runs.c.name, runs.c.scheduled_for)
        old = select(runs.c.name, runs.c.scheduled_for).where(runs.c.claimed_at < before).limit(MOST_PRUNED)
        with reaching(self._engine), self._engine.begin() as connection:
            connection.execute(delete(runs).where(key.in_(old)))


def _keep(connection: Connection, name: str, state: ScheduleState) -> None:
    row = {"name": name, "revision": state.revision, "state": json.loads(state.to_json())}
    upsert = insert(states).values(row)
    connection.execute(
        upsert.on_conflict_do_update(
            index_elements=[states.c.name],
            set_={"revision": upsert.excluded.revision, "state": upsert.excluded.state},
            where=upsert.excluded.revision > states.c.revision,
        )
    )
