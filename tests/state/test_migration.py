"""The table of the release before becomes the one of today, with its rows."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

import service.state
from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.state import database
from service.state.database import engine_for
from service.state.history import History
from service.state.migrate import MIGRATION_LOCK, upgrade
from service.state.states import State
from service.state.store import store
from tests.servers import eventually, new_database
from tests.state.stories import a_job

NOW = datetime.now(UTC).replace(microsecond=0)  # the service counts milliseconds


def migrate(engine: Engine, act: Any, revision: str) -> None:
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(service.state.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        act(config, revision)


@pytest.fixture
def before(postgres_url: str) -> Any:
    engine = engine_for(new_database(postgres_url, f"before_{uuid.uuid4().hex}"))
    migrate(engine, command.upgrade, "0003")
    yield engine
    engine.dispose()


def test_the_rows_of_the_release_before_are_kept(before: Engine, broker: RedisBroker) -> None:
    ages = (0, 1, 40, 4000)
    ids = [uuid.uuid4() for _ in ages]
    with before.begin() as connection:
        for job_id, age in zip(ids, ages, strict=True):
            connection.execute(
                text(
                    "INSERT INTO callboard_jobs "
                    "(job_id, sequence, type, queue, state, attempt, created_at, changed_at, result) "
                    "VALUES (:job_id, 7, 't.act', 'email', 'succeeded', 1, :at, :at, '{\"b\": 1, \"a\": 2}')"
                ),
                {"job_id": job_id, "at": NOW - timedelta(days=age)},
            )
    upgrade(before.url.render_as_string(hide_password=False))
    history = History(before, broker)
    for job_id, age in zip(ids, ages, strict=True):
        found = history.find(job_id)
        assert found is not None
        assert (found.state, found.attempt, found.created_at) == (State.SUCCEEDED, 1, NOW - timedelta(days=age))
        assert list(found.result) == ["b", "a"]
    with before.connect() as connection:
        store(connection, a_job(str(ids[0]), "pending", NOW))
    assert (history.find(ids[0]) or found).state is State.SUCCEEDED, "what is told again changes nothing"


def test_a_migration_may_take_longer_than_any_other_statement(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "REPLY_TIMEOUT_SECONDS", 0.4)
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", 300)
    url = new_database(postgres_url, f"slow_{uuid.uuid4().hex}")
    with psycopg.connect(url) as other:
        # As another process that migrates.
        other.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        ended = threading.Timer(1, other.commit)
        ended.start()
        upgrade(url)
        ended.join()


def test_who_reads_a_table_that_is_to_be_changed_waits_briefly_and_the_migration_insists(
    before: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    url = before.url.render_as_string(hide_password=False)
    migration = threading.Thread(target=upgrade, args=[url])
    with psycopg.connect(url.replace("+psycopg", "")) as long, psycopg.connect(url.replace("+psycopg", "")) as reader:
        reader.autocommit = True
        long.execute("SELECT count(*) FROM callboard_jobs")  # a report that goes on for a while
        migration.start()
        longest, ends_at = 0.0, time.monotonic() + 4
        while time.monotonic() < ends_at:
            began = time.monotonic()
            reader.execute("SELECT count(*) FROM callboard_jobs")
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.01)
        assert 0.2 < longest < 1.8, "it has waited behind the migration, which gives up in time"
        assert migration.is_alive()
        long.commit()
        migration.join(20)
    assert not migration.is_alive()
    assert "is in use: trying again" in caplog.text
    with before.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM callboard_version")).scalar() != "0003"


def test_a_migration_gives_up_where_a_table_is_never_free(before: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.state.migrate.INSIST_SECONDS", 0.5)
    url = before.url.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", "")) as forgotten:
        forgotten.execute("SELECT count(*) FROM callboard_jobs")
        with pytest.raises(HistoryUnavailable, match="in use all the time"):
            upgrade(url)
    with before.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM callboard_version")).scalar() == "0003"


def test_replicas_that_migrate_at_once_all_end_well_but_one_that_is_killed(postgres_url: str) -> None:
    url = new_database(postgres_url, f"many_{uuid.uuid4().hex}")
    with psycopg.connect(url, autocommit=True) as watch, psycopg.connect(url) as first:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        program = [sys.executable, "-m", "service.cli", "migrate"]
        # Not in a folder with an `.env` or such, and with no setting of this process's but the database.
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "DATABASE_URL": url}
        replicas = [subprocess.Popen(program, env=environment) for _ in range(3)]
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        eventually(lambda: (watch.execute(waiting).fetchone() or [0])[0] == 3, 60)
        replicas[0].kill()
        first.commit()
        assert [replica.wait(60) for replica in replicas] == [-signal.SIGKILL, 0, 0]
        assert watch.execute("SELECT count(*) FROM callboard_version").fetchone() == (1,)
        assert watch.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_a_database_that_a_newer_release_has_migrated_is_left_as_it_is(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE callboard_version SET version_num = '9999'")
    upgrade(database_url)
    assert "newer release" in caplog.text
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT version_num FROM callboard_version").fetchall() == [("9999",)]


def test_there_is_a_way_back(before: Engine) -> None:
    job_id = uuid.uuid4()
    upgrade(before.url.render_as_string(hide_password=False))
    with before.connect() as connection:
        store(connection, a_job(str(job_id), "dead", NOW))
    migrate(before, command.downgrade, "0006")
    with before.connect() as connection:
        row = connection.execute(text("SELECT job_id, state, skipped FROM callboard_jobs")).one()
    assert tuple(row) == (job_id, "dead", False)
