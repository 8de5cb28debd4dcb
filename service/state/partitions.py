"""Partitions of job history: one for each day (UTC) of the jobs' creation, made ahead, and dropped whole when old.

A row of a day that has none (a job that was created long ago, or with a clock that is ahead) is in the default
partition.
Nothing here needs more rights than those of the tables' owner.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, text

PARENTS = ("callboard_jobs", "callboard_events")
DAYS_AHEAD = 7
#: Of days before, none is made: most of what comes from there may be old enough to go.
DAYS_BACK = 2
#: Whoever waits for a lock on a table makes all wait who want to read it after that.
LOCK_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Partition:
    """One day of one table."""

    parent: str
    day: date

    @property
    def name(self) -> str:
        """The table's own name."""
        return f"{self.parent}_{self.day:%Y%m%d}"

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        """The times from which and before which its rows were created."""
        start = datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)
        return start, start + timedelta(days=1)


def existing(connection: Connection) -> list[Partition]:
    """Return the partitions that there are, without the default ones, the oldest first."""
    found = connection.execute(
        text(
            "SELECT p.relname AS parent, c.relname AS name FROM pg_inherits i "
            "JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent "
            "WHERE i.inhparent = ANY (ARRAY[to_regclass('callboard_jobs'), to_regclass('callboard_events')]) "
            "AND c.relname ~ '_[0-9]{8}$'"
        )
    )
    rows = [Partition(row.parent, date.fromisoformat(row.name[-8:])) for row in found]
    return sorted(rows, key=lambda partition: (partition.day, partition.parent))


def make_ahead(connection: Connection, today: date, ahead: int = DAYS_AHEAD) -> list[Partition]:
    """Make the partitions of the days around this one that are missing, each in a transaction of its own."""
    there = set(existing(connection))
    days = [today + timedelta(days=offset) for offset in range(-DAYS_BACK, ahead + 1)]
    made = [Partition(parent, day) for day in days for parent in PARENTS]
    missing = [partition for partition in made if partition not in there]
    connection.commit()
    for partition in missing:
        make(connection, partition)
        connection.commit()
    return missing


def make(connection: Connection, partition: Partition) -> None:
    """Make one partition, with the rows of its day that the default one has."""
    bound_locks(connection)
    parent, name = partition.parent, partition.name
    start, end = (f"'{bound.isoformat()}'" for bound in partition.bounds)
    within = f"created_at >= {start} AND created_at < {end}"
    # Attached rather than made as a partition: so that readers of the other ones are not locked out. With the
    # constraint there is no need to look at its rows again.
    for statement in (
        f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL, CONSTRAINT {name}_day CHECK ({within}))",
        f"WITH moved AS (DELETE FROM {parent}_default WHERE {within} RETURNING *) "
        f"INSERT INTO {name} SELECT * FROM moved",
        f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})",
        f"ALTER TABLE {name} DROP CONSTRAINT {name}_day",
    ):
        connection.execute(text(statement))


def drop(connection: Connection, partitions: Iterable[Partition]) -> None:
    """Drop partitions with all their rows."""
    for partition in partitions:
        connection.execute(text(f"DROP TABLE {partition.name}"))


def bound_locks(connection: Connection) -> None:
    """Let this transaction fail rather than wait for long where somebody else, such as a report, uses the tables."""
    connection.execute(text(f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}"))
