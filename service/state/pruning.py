"""How long the history of jobs is kept: by age and by count, for each state in which a job can end.

Lines of the audit log go by age alone, where a setting says so.

Carried out by the projector that works, in small steps. A day whose jobs are mostly due goes as a whole: its partition
is dropped, which leaves nothing to clean up, and the few rows that stay longer move to the default partition first.
Where many stay, rows go by the thousand.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from sqlalchemy import Connection, text

from service.settings import Settings
from service.state import partitions
from service.state.partitions import Partition
from service.state.states import State

#: So many rows of a partition may move before it is dropped.
MOST_MOVED = 5_000
#: So many are deleted in one step.
CHUNK = 1_000
PAUSE_SECONDS = 60.0
#: Counting reads that many entries of an index: not more often than so.
COUNT_SECONDS = 600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long jobs of one state are kept after their end, and how many of them."""

    days: float
    most: int


def policies_of(settings: Settings) -> dict[State, Policy]:
    """Return the policy of each state in which a job ends. A job that has not ended is always kept."""
    return {
        State.SUCCEEDED: Policy(settings.history_succeeded_days, settings.history_succeeded_most),
        State.DEAD: Policy(settings.history_dead_days, settings.history_dead_most),
        State.CANCELLED: Policy(settings.history_cancelled_days, settings.history_cancelled_most),
    }


class Pruning:
    """Makes partitions ahead, and removes what is too old or too much. All methods raise the driver's errors."""

    def __init__(self, policies: dict[State, Policy], audit_days: float | None = None) -> None:
        self._policies = policies
        self._audit_days = audit_days
        self._too_many: dict[State, datetime] = {}
        self._next_at = self._next_count_at = 0.0

    def step_if_due(self, connection: Connection) -> None:
        """Take a step now and then: at once again while there is more to do."""
        if monotonic() >= self._next_at and not self.step(connection):
            self.pause()

    def pause(self) -> None:
        """Leave it for a while."""
        self._next_at = monotonic() + PAUSE_SECONDS

    def step(self, connection: Connection, now: datetime | None = None) -> bool:
        """Make the partitions that are missing, and remove one piece. Returns whether there may be more."""
        now = now or datetime.now(UTC)
        partitions.make_ahead(connection, now.date())
        if self._audit_days is not None and self._forget_acts(connection, now - timedelta(days=self._audit_days)):
            return True
        if monotonic() >= self._next_count_at:
            self._too_many = self._count(connection)
            self._next_count_at = monotonic() + COUNT_SECONDS
        due = self._due(now)
        newest = max(max(cuts) for cuts in due.values())
        for partition in partitions.existing(connection):
            start, end = partition.bounds
            if partition.parent != "callboard_jobs" or start >= newest:
                continue
            if self._prune(connection, partition, end < now - timedelta(days=partitions.DAYS_BACK), due):
                return True
        return self._delete(connection, "callboard_jobs_default", due) > 0

    def _forget_acts(self, connection: Connection, before: datetime) -> int:
        """Delete up to CHUNK lines of the audit log, and return how many."""
        # Their numbers rise with their times: the oldest are found without an index of these.
        oldest = "SELECT id, begun_at FROM callboard_audit ORDER BY id LIMIT :most"
        removed = connection.execute(
            text(f"DELETE FROM callboard_audit WHERE id IN (SELECT id FROM ({oldest}) o WHERE begun_at < :before)"),
            {"most": CHUNK, "before": before},
        ).rowcount
        connection.commit()
        if removed:
            logger.info("Lines of the audit log were removed by age", extra={"number": removed})
        return removed

    def _due(self, now: datetime) -> dict[State, tuple[datetime, datetime]]:
        """For each state the times before which a job of it has ended, or was created, to be due."""
        oldest = datetime.fromtimestamp(0, UTC)
        return {
            state: (now - timedelta(days=policy.days), self._too_many.get(state, oldest))
            for state, policy in self._policies.items()
        }

    def _count(self, connection: Connection) -> dict[State, datetime]:
        """Of states that have too many jobs: the creation of the first of those that stay."""
        query = text(
            "SELECT created_at FROM callboard_jobs WHERE state = :state "
            "ORDER BY created_at DESC, job_id DESC OFFSET :most LIMIT 1"
        )
        found: dict[State, datetime] = {}
        for state, policy in self._policies.items():
            last = connection.execute(query, {"state": state, "most": policy.most}).scalar()
            if last is not None:
                found[state] = last + timedelta(microseconds=1)
        connection.commit()
        return found

    def _prune(
        self, connection: Connection, partition: Partition, is_over: bool, due: dict[State, tuple[datetime, datetime]]
    ) -> bool:
        is_due = _condition(due)
        some = f"SELECT 1 FROM {partition.name} WHERE ({is_due}) IS NOT TRUE LIMIT {MOST_MOVED + 1}"
        kept = connection.execute(text(f"SELECT count(*) FROM ({some}) k")).scalar_one()
        if kept <= MOST_MOVED and is_over:
            self._drop(connection, partition, is_due, kept)
            return True
        connection.commit()
        return self._delete(connection, partition.name, due) > 0

    def _drop(self, connection: Connection, partition: Partition, is_due: str, kept: int) -> None:
        """Drop a day of both tables, after what stays has moved."""
        partitions.bound_locks(connection)
        told = Partition("callboard_events", partition.day)
        both = [partition, *([told] if told in partitions.existing(connection) else [])]
        if kept:
            kept_rows = f"SELECT * FROM {partition.name} WHERE ({is_due}) IS NOT TRUE"
            connection.execute(text(f"CREATE TEMP TABLE kept_jobs ON COMMIT DROP AS {kept_rows}"))
            if told in both:
                connection.execute(
                    text(
                        f"CREATE TEMP TABLE kept_events ON COMMIT DROP AS SELECT e.* FROM {told.name} e "
                        "JOIN kept_jobs k ON k.created_at = e.created_at AND k.job_id = e.job_id"
                    )
                )
        partitions.drop(connection, both)
        if kept:
            connection.execute(text("INSERT INTO callboard_jobs SELECT * FROM kept_jobs"))
            if told in both:
                connection.execute(text("INSERT INTO callboard_events SELECT * FROM kept_events"))
        connection.commit()
        fields = {"day": partition.day.isoformat(), "kept": kept}
        logger.info("A day of history was removed", extra=fields)

    def _delete(self, connection: Connection, table: str, due: dict[State, tuple[datetime, datetime]]) -> int:
        """Delete up to CHUNK due jobs with their events, and return how many."""
        removed = connection.execute(
            text(
                f"WITH due AS (SELECT created_at, job_id FROM {table} WHERE {_condition(due)} LIMIT {CHUNK}), "
                "told AS (DELETE FROM callboard_events e USING due d "
                "WHERE e.created_at = d.created_at AND e.job_id = d.job_id) "
                f"DELETE FROM {table} j USING due d WHERE j.created_at = d.created_at AND j.job_id = d.job_id"
            )
        ).rowcount
        connection.commit()
        if removed:
            logger.info("Jobs were removed from history by age or count", extra={"number": removed, "table": table})
        return removed


def _condition(due: dict[State, tuple[datetime, datetime]]) -> str:
    """What is due, in SQL. Of our own values only. A job stays while its task waits for what it has come to."""
    parts = [
        f"(state = '{state}' AND (completed_at < '{ended.isoformat()}' OR created_at < '{created.isoformat()}'))"
        for state, (ended, created) in due.items()
    ]
    return f"({' OR '.join(parts)}) AND job_id NOT IN (SELECT job_id FROM callboard_task_runs)"
