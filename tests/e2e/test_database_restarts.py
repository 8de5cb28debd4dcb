"""A restart of the database, and connections that it has dropped: no job fails for it, and none holds a transaction."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from service.cli.up.postgres import Postgres
from service.cli.up.postgres import url as postgres_address
from service.cli.up.state_dir import StateDir
from service.state.migrate import upgrade
from tests.e2e.conftest import Service
from tests.servers import eventually, free_port

TASKS = "/api/task-queue"


class Database:
    """A server of one test, which can be restarted on its data."""

    def __init__(self, folder: Path) -> None:
        state = StateDir(folder / ".callboard")
        state.make()
        self._server = Postgres.find(state, {"PATH": "/usr/bin:/bin"})
        self._server.prepare("secret")
        self._port = free_port()
        self.url = postgres_address(self._port, "secret")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = self._server.program(self._port)
        user, group = program.owner or (None, None)
        self._process = process = subprocess.Popen(
            program.argv,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=program.env,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        eventually(lambda: self._server.answers(process.pid))

    def stop(self) -> None:
        """At once: sessions are broken off."""
        assert self._process
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)

    def ask(self, query: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query).fetchall()

    def drop_connections(self) -> int:
        """Terminate every session but our own, as a restart or an idle limit does."""
        found = self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return len(found)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path)
    database.start()
    upgrade(database.url)
    yield database
    database.stop()


@pytest.fixture
def everything(service: Service, database: Database) -> Service:
    """The API, the projector, a worker without a database, and one that writes outcomes."""
    service.environment |= {"DATABASE_URL": database.url, "CALLBOARD_ACTORS": "task_jobs"}
    service.start_api()
    service.start_worker("worker", "--queues", "default", DATABASE_URL="")
    service.start_worker("outcomes", "--queues", "task-outcomes")
    return service


def execute(service: Service, seconds: float = 0) -> str:
    status, body = service.call(TASKS, {"task_type": "agent.note", "description": str(seconds)})
    assert status == 201, body
    status, executed = service.call(f"{TASKS}/{body['task_id']}/execute", {})
    assert status == 200, executed
    return body["task_id"]


def statuses(database: Database) -> list[str]:
    return [status for (status,) in database.ask("SELECT status FROM agent_task_queue")]


def states(database: Database) -> list[str]:
    return [state for (state,) in database.ask("SELECT state FROM callboard_jobs WHERE type = 'agent.note'")]


def test_dropped_connections_fail_no_later_job_and_no_request(everything: Service, database: Database) -> None:
    execute(everything)
    eventually(lambda: statuses(database) == ["completed"], 40)
    for _ in range(2):
        assert database.drop_connections() >= 2
        for _ in range(10):
            execute(everything)
    eventually(lambda: statuses(database) == ["completed"] * 21, 60)
    eventually(lambda: states(database) == ["succeeded"] * 21, 40)
    assert len(everything.notes()) == 21, "no job ran twice"


def test_a_restart_while_a_job_runs_costs_it_neither_its_result_nor_its_state(
    everything: Service, database: Database
) -> None:
    task_id = execute(everything, 4)
    eventually(lambda: len(everything.notes()) == 1)
    database.stop()
    time.sleep(1)
    database.start()
    eventually(lambda: statuses(database) == ["completed"], 60)
    eventually(lambda: states(database) == ["succeeded"], 40)
    assert everything.call(f"{TASKS}/{task_id}")[1]["result"] == "4"
    assert len(everything.notes()) == 1
    for name in ("worker", "outcomes", "projector", "api"):
        assert everything.processes[name].poll() is None, name


def test_no_transaction_is_open_while_a_job_runs(everything: Service, database: Database) -> None:
    execute(everything, 3)
    eventually(lambda: len(everything.notes()) == 1)
    deadline = time.monotonic() + 2
    longest = 0.0
    while time.monotonic() < deadline:
        [(seconds,)] = database.ask(
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0) FROM pg_stat_activity "
            "WHERE state LIKE 'idle in transaction%'"
        )
        longest = max(longest, float(seconds))
        time.sleep(0.05)
    # Between two statements of one short transaction there is always a moment.
    assert longest < 1.0


def test_a_limit_for_idle_transactions_breaks_nothing(everything: Service, database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET idle_in_transaction_session_timeout = '1s'")
        connection.execute("SELECT pg_reload_conf()")
    execute(everything, 3)
    eventually(lambda: statuses(database) == ["completed"], 40)
    execute(everything)
    eventually(lambda: statuses(database) == ["completed"] * 2, 40)
    for name in ("outcomes", "projector", "api"):
        assert "idle-in-transaction timeout" not in everything.log(name), name


def test_a_projector_that_was_killed_with_its_session_is_followed_by_the_next(
    everything: Service, database: Database
) -> None:
    os.killpg(everything.processes["projector"].pid, signal.SIGKILL)
    everything.start("projector", "callboard", "projector")
    execute(everything)
    eventually(lambda: states(database) == ["succeeded"], 60)
