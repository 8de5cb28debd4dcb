"""A task in progress is cancelled or deleted: its job is cancelled, wherever that is, and the task ends so."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, update

from service.broker import RedisBroker
from service.state.task_tables import tasks
from service.tasks.reconciler import ONCE_WITHIN_SECONDS, TaskReconciler
from service.tasks.store import TaskStore
from service.tasks.types import message_for
from tests.api.conftest import Answer, Api
from tests.servers import eventually
from tests.tasks.conftest import Calls, create, execute, runs_left, task
from tests.tasks.test_reconciler import make_due, project

ROOT = "/api/task-queue"
CANCELLED = {"status": "cancelled"}


def cancel(api: Api, task_id: str, **more: Any) -> Answer:
    return api.ask("PATCH", f"{ROOT}/{task_id}", json={**CANCELLED, **more})


def state_of(api: Api, job_id: str) -> str:
    return api.get(f"/jobs/{job_id}").body["state"]


@pytest.fixture
def running(api: Api, calls: Calls, start_worker: Callable[..., Any]) -> tuple[str, str]:
    """A task whose job runs, and that job."""
    task_id = create(api, description="wait")
    job_id = execute(api, task_id)
    start_worker()
    eventually(lambda: len(calls) == 1)
    return task_id, job_id


def test_a_task_whose_job_waits_is_cancelled_at_once(api: Api, broker: RedisBroker, engine: Engine) -> None:
    task_id = create(api)
    job_id = execute(api, task_id)
    answer = cancel(api, task_id)
    assert (answer.status, answer.body["status"], answer.body["job_id"]) == (200, "cancelled", job_id)
    assert answer.body["error_message"] == "Cancelled: Cancelled by anybody"
    assert answer.body["completed_at"] is not None
    assert (task(api, task_id), state_of(api, job_id)) == (answer.body, "cancelled")
    assert broker.wire.backlog("default") == 0
    assert runs_left(engine) == []
    assert cancel(api, task_id).status == 200, "it is safe to repeat"
    assert execute(api, task_id) != job_id, "it may be executed again"


def test_a_task_whose_job_runs_ends_as_cancelled_in_a_moment(
    api: Api, broker: RedisBroker, engine: Engine, running: tuple[str, str]
) -> None:
    task_id, job_id = running
    answer = cancel(api, task_id)
    assert (answer.status, answer.body["status"]) == (202, "in_progress")
    eventually(lambda: state_of(api, job_id) == "cancelled")
    reconciler = TaskReconciler(broker, engine)
    eventually(lambda: reconciler.step() or task(api, task_id)["status"] == "cancelled")
    assert (task(api, task_id)["status"], task(api, task_id)["job_id"]) == ("cancelled", job_id)


def test_a_cancel_lets_the_reconciler_look_at_once_however_rare_its_looks_were(
    broker: RedisBroker, engine: Engine, api: Api, running: tuple[str, str]
) -> None:
    reconciler = TaskReconciler(broker, engine)
    for _ in range(6):
        make_due(engine)
        assert reconciler.step() == 1
    assert reconciler.step() == 0
    assert cancel(api, running[0]).status == 202
    assert reconciler.step() == 1


def test_what_also_changes_a_task_in_progress_is_refused_and_cancels_nothing(api: Api) -> None:
    task_id = create(api)
    job_id = execute(api, task_id)
    answer = cancel(api, task_id, priority=9)
    assert (answer.status, answer.body["job_id"]) == (409, job_id)
    assert (task(api, task_id)["status"], state_of(api, job_id)) == ("in_progress", "pending")


def test_a_job_that_was_faster_stays_what_it_has_come_to(
    api: Api, broker: RedisBroker, engine: Engine, start_worker: Callable[..., Any]
) -> None:
    task_id = create(api, description="done")
    job_id = execute(api, task_id)
    start_worker()
    eventually(lambda: state_of(api, job_id) == "succeeded")
    project(broker, engine)
    assert task(api, task_id)["status"] == "in_progress", "nobody writes outcomes here"
    answer = cancel(api, task_id)
    assert (answer.status, answer.body["type"]) == (409, "urn:callboard:problem:conflict")
    assert (task(api, task_id)["status"], task(api, task_id)["result"]) == ("completed", {"answer": "done"})


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_job_that_was_not_sent_yet_never_is(api: Api, broker: RedisBroker, engine: Engine, method: str) -> None:
    """Whoever has begun it may be about to send it, or have died; a reconciler may be about to look at it."""
    task_id = create(api)
    begun = TaskStore(engine).begin(UUID(task_id), lambda one: message_for(broker, one))
    assert begun
    request = {"json": CANCELLED} if method == "PATCH" else {}
    assert api.ask(method, f"{ROOT}/{task_id}", **request).status in (200, 204)
    assert not broker.enqueue_once(begun.message, ONCE_WITHIN_SECONDS)
    make_due(engine)
    TaskReconciler(broker, engine).step()
    assert broker.wire.backlog("default") == 0
    if method == "PATCH":
        assert task(api, task_id)["status"] == "cancelled"


def test_a_job_that_was_lost_with_redis_leaves_a_cancelled_task(api: Api, broker: RedisBroker, engine: Engine) -> None:
    task_id = create(api)
    execute(api, task_id)
    broker.client.flushdb()
    assert cancel(api, task_id).body["status"] == "cancelled"
    make_due(engine, timedelta(hours=1))
    TaskReconciler(broker, engine).step()
    assert broker.wire.backlog("default") == 0


def test_a_deleted_task_takes_its_job_with_it(
    api: Api, broker: RedisBroker, engine: Engine, running: tuple[str, str]
) -> None:
    assert api.ask("POST", "/queues/default/pause").status == 200
    waiting = create(api)
    job_id = execute(api, waiting)
    for one in (waiting, running[0]):
        assert api.ask("DELETE", f"{ROOT}/{one}").status == 204
        assert api.get(f"{ROOT}/{one}").status == 404
    assert runs_left(engine) == []
    eventually(lambda: {state_of(api, job_id), state_of(api, running[1])} == {"cancelled"})
    assert broker.wire.backlog("default") == 0


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_task_that_somebody_else_says_is_in_progress_without_a_job_can_be_ended(
    api: Api, engine: Engine, method: str
) -> None:
    task_id = create(api)
    with engine.begin() as connection:
        connection.execute(update(tasks).values(status="in_progress"))
    assert api.ask("POST", f"{ROOT}/{task_id}/execute").status == 409
    answer = api.ask(method, f"{ROOT}/{task_id}", json=CANCELLED if method == "PATCH" else None)
    if method == "PATCH":
        assert (answer.status, answer.body["status"]) == (200, "cancelled")
        assert execute(api, task_id)
    else:
        assert answer.status == 204
        assert api.get(f"{ROOT}/{task_id}").status == 404
