"""Tasks through every process, and through the death or absence of each."""

import os
import signal
import threading
from typing import Any

import psycopg
import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.servers import eventually, free_port, frozen_postgres

ROOT = "/api/task-queue"


@pytest.fixture
def tasks(whole_service: Service) -> Service:
    """The API, the projector, and a worker that has no database."""
    for name in ("api", "projector"):
        os.killpg(whole_service.processes[name].pid, signal.SIGKILL)
    whole_service.environment["CALLBOARD_ACTORS"] = "task_jobs"
    whole_service.start_api()
    whole_service.start_worker("worker", DATABASE_URL="")
    return whole_service


def create(service: Service, description: str = "") -> str:
    status, body = service.call(ROOT, {"task_type": "agent.note", "description": description})
    assert status == 201, body
    return body["task_id"]


def execute(service: Service, task_id: str) -> str:
    status, body = service.call(f"{ROOT}/{task_id}/execute", {})
    assert status == 200, body
    return body["job_id"]


def task(service: Service, task_id: str) -> dict[str, Any]:
    return service.call(f"{ROOT}/{task_id}")[1]


def rows(url: str) -> dict[str, tuple[str, str | None]]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT task_id, status, result #>> '{}' FROM agent_task_queue").fetchall()
    return {str(task_id): (status, result) for task_id, status, result in found}


def test_an_outage_of_the_database_delays_the_outcome_and_harms_no_job(
    tasks: Service, broker: RedisBroker, database_url: str, postgres_url: str
) -> None:
    os.killpg(tasks.processes["projector"].pid, signal.SIGKILL)  # its reconciler would help
    tasks.start_worker("outcomes", "--queues", "task-outcomes")
    task_ids = [create(tasks, "1") for _ in range(6)]
    job_ids = [execute(tasks, task_id) for task_id in task_ids]
    with frozen_postgres(postgres_url):
        for job_id in job_ids:
            eventually(lambda job_id=job_id: (broker.find_record(job_id) or {}).get("state") == "succeeded")
        # Longer than the patience of the small jobs: they are given back, and taken again.
        eventually(lambda: broker.client.zcard(Keys(broker.namespace, "task-outcomes").delayed) > 0, 40)
    eventually(lambda: set(rows(database_url).values()) == {("completed", "1")}, 30)
    assert broker.client.zcard(Keys(broker.namespace, "task-outcomes").dead) == 0
    assert sorted(tasks.notes()) == sorted(task_ids), "each ran once"


def test_a_worker_without_a_database_leaves_outcomes_to_one_that_has_it(tasks: Service, broker: RedisBroker) -> None:
    os.killpg(tasks.processes["projector"].pid, signal.SIGKILL)
    task_id = create(tasks)
    job_id = execute(tasks, task_id)
    eventually(lambda: (broker.find_record(job_id) or {}).get("state") == "succeeded")
    eventually(lambda: broker.wire.backlog("task-outcomes") == 1)
    assert task(tasks, task_id)["status"] == "in_progress"
    tasks.start_worker("outcomes", "--queues", "task-outcomes")
    eventually(lambda: task(tasks, task_id)["status"] == "completed")
    assert broker.wire.backlog("task-outcomes") == 0


def test_a_worker_of_outcomes_does_not_start_without_a_database(service: Service) -> None:
    command = ("dramatiq", "service.actors", "--processes", "1", "--threads", "1", "--queues", "task-outcomes")
    process = service.start("outcomes", *command, DATABASE_URL="")
    process.wait(30)
    assert "task-outcomes can't be served here: it needs DATABASE_URL" in service.log("outcomes")


def test_without_a_worker_of_outcomes_the_projector_writes_them(tasks: Service) -> None:
    task_id = create(tasks)
    execute(tasks, task_id)
    eventually(lambda: task(tasks, task_id)["status"] == "completed", 30)


def test_no_task_is_lost_or_run_twice_when_the_api_is_killed_again_and_again(
    tasks: Service, broker: RedisBroker, database_url: str
) -> None:
    task_ids = [create(tasks) for _ in range(60)]
    stop = threading.Event()

    def execute_all() -> None:
        for task_id in task_ids:
            while not stop.is_set():
                try:
                    status, _ = tasks.call(f"{ROOT}/{task_id}/execute", {})
                except (OSError, ValueError):
                    continue  # the API is gone for a moment
                if status in (200, 409) or rows(database_url)[task_id][0] != "pending":
                    break

    executing = threading.Thread(target=execute_all)
    executing.start()
    for round_ in range(3):
        eventually(lambda least=15 * (round_ + 1): begun(database_url) >= least, 60)
        os.killpg(tasks.processes["api"].pid, signal.SIGKILL)
        tasks.processes["api"].wait()
        tasks.api_port = free_port()
        tasks.start("api", "callboard", "api", CALLBOARD_API_PORT=str(tasks.api_port))
    executing.join(60)
    stop.set()
    eventually(lambda: {status for status, _ in rows(database_url).values()} == {"completed"}, 60)
    # A client that got no answer may have executed a task again that had ended meanwhile; nothing ran beside itself.
    assert set(tasks.notes()) == set(task_ids)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM callboard_task_runs").fetchone() == (0,)


def begun(url: str) -> int:
    return sum(status != "pending" for status, _ in rows(url).values())
