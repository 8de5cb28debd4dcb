"""The SQL of runs: which are to be looked at, and what they have come to. Raises HistoryUnavailable.

A look is claimed by moving the next one ahead: so several reconcilers may run, and what one that died has claimed is
looked at by another when that time has come.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Engine, and_, delete, func, or_, select, update

from service.state.database import reaching
from service.state.snapshot import Snapshot
from service.state.task_states import TASK_STATUS_OF, TaskStatus
from service.state.task_tables import runs, tasks

WITHIN_SECONDS = 5.0
#: Between the looks at one run: twice as long each time, up to this.
LONGEST_PAUSE_SECONDS = 60
MOST_LOOKS = 1000


class Run(NamedTuple):
    """A task in progress. `sent_seconds` ago its job was sent; None where that is not known."""

    job_id: UUID
    task_id: UUID
    message: bytes
    sent_seconds: float | None


class Runs:
    """The table of runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, count: int) -> list[Run]:
        """Take up to `count` runs that are to be looked at now."""
        due = select(runs.c.job_id).where(runs.c.look_at <= func.now()).order_by(runs.c.look_at).limit(count)
        pause = func.least(LONGEST_PAUSE_SECONDS, func.power(2, func.least(runs.c.looks + 1, 10)))
        claim = (
            update(runs)
            .where(runs.c.job_id.in_(due.with_for_update(skip_locked=True)))
            .values(
                looks=func.least(runs.c.looks + 1, MOST_LOOKS),
                look_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, pause),
            )
            .returning(
                runs.c.job_id, runs.c.task_id, runs.c.message, func.extract("epoch", func.now() - runs.c.sent_at)
            )
        )
        with reaching(self._engine, WITHIN_SECONDS), self._engine.begin() as connection:
            return [_run(*row) for row in connection.execute(claim)]

    def note_sent(self, job_id: UUID) -> None:
        """Note that Redis has a run's job now."""
        with reaching(self._engine, WITHIN_SECONDS), self._engine.begin() as connection:
            connection.execute(update(runs).where(runs.c.job_id == job_id).values(sent_at=func.now(), looks=0))

    def look_soon(self, job_id: UUID) -> None:
        """Let a reconciler look at a run at once, and often: its job ends in a moment."""
        with reaching(self._engine, WITHIN_SECONDS), self._engine.begin() as connection:
            connection.execute(update(runs).where(runs.c.job_id == job_id).values(look_at=func.now(), looks=0))

    def end(self, task_id: UUID, snapshot: Snapshot) -> bool:
        """Write into a task what its job, which has ended, has come to. Returns whether the task waited for that."""
        error = snapshot.error or {}
        named = ": ".join(filter(None, (error.get("type"), error.get("message"))))
        outcome = {
            "status": TASK_STATUS_OF[snapshot.state],
            "result": snapshot.result,
            "error_message": named or None,
            "completed_at": snapshot.completed_at or snapshot.changed_at,
        }
        return self._end(task_id, snapshot.job_id, outcome)

    def fail(self, run: Run, reason: str) -> bool:
        """Write that a task has failed whose job has no outcome."""
        now = datetime.now(UTC)
        failed = {"status": TaskStatus.FAILED, "result": None, "error_message": reason, "completed_at": now}
        return self._end(run.task_id, run.job_id, failed)

    def cancel(self, task_id: UUID, job_id: UUID | None, reason: str) -> bool:
        """Write that a task is cancelled whose job was never sent, or is known nowhere, or that has none."""
        now = datetime.now(UTC)
        cancelled = {"status": TaskStatus.CANCELLED, "result": None, "error_message": reason, "completed_at": now}
        return self._end(task_id, job_id, cancelled)

    def _end(self, task_id: UUID, job_id: UUID | None, outcome: dict[str, Any]) -> bool:
        waits = tasks.c.status == TaskStatus.IN_PROGRESS.value
        if outcome["status"] is TaskStatus.COMPLETED:
            # Its dead job may have been replayed since.
            waits = or_(waits, tasks.c.status == TaskStatus.FAILED.value)
        mine = and_(tasks.c.task_id == task_id, tasks.c.job_id == job_id, waits)
        # The two clocks may differ: no task ends before it has started.
        ended = func.greatest(tasks.c.started_at, outcome["completed_at"])
        values = {**outcome, "status": outcome["status"].value, "completed_at": ended}
        with reaching(self._engine, WITHIN_SECONDS), self._engine.begin() as connection:
            has_waited = connection.execute(update(tasks).where(mine).values(**values)).rowcount > 0
            connection.execute(delete(runs).where(runs.c.job_id == job_id))
        return has_waited


def _run(job_id: UUID, task_id: UUID, message: bytes, sent: Decimal | None) -> Run:
    return Run(job_id, task_id, message, None if sent is None else float(sent))
