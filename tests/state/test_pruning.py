"""History goes by age and by count: whole days without a trace, single rows by the piece."""

import time
import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, Engine, delete, func, insert, select, text, update
from sqlalchemy.exc import OperationalError

from service.state import partitions, pruning
from service.state.database import engine_for
from service.state.migrate import upgrade
from service.state.partitions import Partition
from service.state.pruning import Policy, Pruning
from service.state.states import State
from service.state.store import store
from service.state.tables import events, jobs
from service.state.task_tables import runs, tasks
from tests.servers import new_database
from tests.state.stories import a_job

NOW = datetime.now(UTC)
KEEP = {
    State.SUCCEEDED: Policy(days=7, most=1_000_000),
    State.DEAD: Policy(days=90, most=1_000_000),
    State.CANCELLED: Policy(days=30, most=1_000_000),
}


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def make_day(connection: Connection, days: float) -> Partition:
    """The partition of a day in the past, as it was made when that day came."""
    partition = Partition("callboard_jobs", days_ago(days).date())
    for parent in partitions.PARENTS:
        partitions.make(connection, Partition(parent, partition.day))
    connection.commit()
    return partition


def fill(connection: Connection, days: float, **counts: int) -> None:
    told = [
        event
        for state, count in counts.items()
        for _ in range(count)
        for event in a_job(str(uuid.uuid4()), state, days_ago(days))
    ]
    store(connection, told)


def counts(connection: Connection) -> dict[str, int]:
    found = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
    connection.commit()
    return {row[0]: row[1] for row in found}


def prune(connection: Connection, keep: dict[State, Policy] = KEEP) -> int:
    steps = 1
    pruner = Pruning(keep)
    while pruner.step(connection, NOW):
        steps += 1
    return steps


def dead_tuples(connection: Connection) -> int:
    """What deletes and updates have left in the history, as a vacuum finds it."""
    connection.execute(text("CREATE EXTENSION IF NOT EXISTS pgstattuple"))
    tables = (
        connection.execute(
            text(
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN "
                "('callboard_jobs'::regclass, 'callboard_events'::regclass)"
            )
        )
        .scalars()
        .all()
    )
    found = [
        connection.execute(text(f"SELECT dead_tuple_count FROM pgstattuple('{name}')")).scalar_one() for name in tables
    ]
    connection.commit()
    return sum(found)


def test_a_day_goes_as_a_whole_and_leaves_no_dead_rows(engine: Engine) -> None:
    with engine.connect() as connection:
        partition = make_day(connection, 10)
        fill(connection, 10, succeeded=2000, dead=5, running=3)
        fill(connection, 1, succeeded=10)
        pages = dead_tuples(connection)
        prune(connection)
        assert counts(connection) == {"succeeded": 10, "dead": 5, "running": 3}, "what is not due stays"
        assert partition not in partitions.existing(connection)
        told = connection.execute(select(func.count(func.distinct(events.c.job_id)))).scalar_one()
        assert told == 18, "the events of what stays are there, and no others"
        connection.commit()
        assert dead_tuples(connection) == pages == 0


def test_single_rows_go_by_the_piece(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "CHUNK", 50)
    monkeypatch.setattr(pruning, "MOST_MOVED", 20)
    with engine.connect() as connection:
        make_day(connection, 10)
        fill(connection, 10, succeeded=120, dead=40)
        pruner = Pruning(KEEP)
        left = []
        while pruner.step(connection, NOW):
            left.append(counts(connection).get("succeeded", 0))
        assert left == [70, 20, 0], "no step deletes more than a piece"
        assert counts(connection) == {"dead": 40}


def test_of_too_many_the_oldest_go(engine: Engine) -> None:
    with engine.connect() as connection:
        make_day(connection, 5)
        fill(connection, 5, succeeded=30, dead=7)
        fill(connection, 1, succeeded=20)
        prune(connection, {**KEEP, State.SUCCEEDED: Policy(days=7, most=25)})
        left = counts(connection)
        assert 20 <= left["succeeded"] <= 25 + 30
        assert left["dead"] == 7


def test_a_job_of_any_time_finds_a_place_and_its_day_takes_it_over(engine: Engine) -> None:
    with engine.connect() as connection:
        prune(connection)
        fill(connection, 400, running=1)
        fill(connection, -20, pending=1)
        in_default = select(func.count()).select_from(text("callboard_jobs_default"))
        assert connection.execute(in_default).scalar_one() == 2
        connection.commit()
        later = NOW + timedelta(days=20)
        partitions.make_ahead(connection, later.date())
        assert connection.execute(in_default).scalar_one() == 1, "the day of the other one has come"
        connection.commit()
        assert counts(connection) == {"running": 1, "pending": 1}


def test_an_owner_without_other_rights_can_do_all_of_it(postgres_url: str) -> None:
    name = f"role_{uuid.uuid4().hex}"
    url = new_database(postgres_url, name)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'plain' NOSUPERUSER NOCREATEDB NOCREATEROLE")
        admin.execute(f"ALTER DATABASE {name} OWNER TO {name}")
    plain = url.replace("callboard:secret@", f"{name}:plain@")
    assert plain != url
    upgrade(plain)
    engine = engine_for(plain)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT NOT rolsuper FROM pg_roles WHERE rolname = current_user")).scalar_one()
        connection.commit()
        partition = make_day(connection, 10)
        fill(connection, 10, succeeded=5, dead=1)
        prune(connection)
        assert counts(connection) == {"dead": 1}
        assert partition not in partitions.existing(connection)
    engine.dispose()


def test_a_partition_is_not_waited_for_while_a_report_reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "LOCK_SECONDS", 0.3)
    with engine.connect() as connection, engine.connect() as report:
        last = partitions.existing(connection)[-1]
        partitions.drop(connection, [Partition(parent, last.day) for parent in partitions.PARENTS])
        connection.commit()
        report.execute(text("SELECT count(*) FROM callboard_jobs"))
        began = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout"):
            partitions.make_ahead(connection, NOW.date())
        assert time.monotonic() - began < partitions.LOCK_SECONDS + 3
        report.rollback()
        connection.rollback()
        assert last.day in {one.day for one in partitions.make_ahead(connection, NOW.date())}


def test_a_job_stays_while_its_task_waits_for_what_it_has_come_to(engine: Engine) -> None:
    task_id, old, recent = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    with engine.connect() as connection:
        make_day(connection, 10)
        fill(connection, 10, succeeded=3)
        store(connection, a_job(str(old), "succeeded", days_ago(10)) + a_job(str(recent), "succeeded", days_ago(8)))
        connection.execute(insert(tasks).values(task_id=task_id, task_type="t", description="", status="in_progress"))
        for job_id in (old, recent):
            connection.execute(insert(runs).values(job_id=job_id, task_id=task_id, message=b"{}"))
        connection.commit()
        prune(connection)
        assert set(connection.execute(select(jobs.c.job_id)).scalars()) == {old, recent}
        connection.execute(delete(runs))
        connection.commit()
        prune(connection)
        assert counts(connection) == {}


def test_a_row_that_lacks_the_time_of_its_end_is_not_dropped_with_its_day(engine: Engine) -> None:
    with engine.connect() as connection:
        make_day(connection, 10)
        fill(connection, 10, succeeded=1)
        connection.execute(update(jobs).values(completed_at=None))
        connection.commit()
        prune(connection)
        assert counts(connection) == {"succeeded": 1}


def test_lines_of_the_audit_log_go_by_age_where_that_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "CHUNK", 2)
    line = "INSERT INTO callboard_audit (begun_at, who, what, why, request_id) VALUES (:at, 'a', 'b', '', 'c')"
    with engine.connect() as connection:
        connection.execute(text(line), [{"at": days_ago(days)} for days in (40, 31, 30.5, 29.5, 0)])
        connection.commit()

        def kept(audit_days: float | None) -> int:
            pruner = Pruning(KEEP, audit_days)
            while pruner.step(connection, NOW):
                pass
            return int(connection.execute(text("SELECT count(*) FROM callboard_audit")).scalar_one())

        assert kept(None) == 5
        assert kept(30) == 2
