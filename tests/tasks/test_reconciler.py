"""Task and job can't drift apart, whichever process dies between the two."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, update

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.messages import decode_message
from service.errors import BrokerUnavailable
from service.state.projector import Projector
from service.state.task_states import TASK_STATUS_OF, TaskStatus
from service.state.task_tables import runs
from service.tasks.reconciler import LOST, LOST_AFTER_SECONDS, TaskReconciler
from service.tasks.store import TaskStore
from service.tasks.types import message_for
from tests.api.conftest import Api
from tests.servers import eventually
from tests.tasks.conftest import Calls, create, execute, runs_left, task


@pytest.fixture
def reconciler(broker: RedisBroker, engine: Engine) -> TaskReconciler:
    return TaskReconciler(broker, engine)


def make_due(engine: Engine, sent_ago: timedelta | None = None) -> None:
    """Let the next look at each run be now."""
    values: dict[str, Any] = {"look_at": func.now()}
    if sent_ago is not None:
        values["sent_at"] = func.now() - sent_ago
    with engine.begin() as connection:
        connection.execute(update(runs).values(**values))


def begin_only(broker: RedisBroker, engine: Engine, task_id: str) -> UUID:
    """What a process does that is killed between the row and the send."""
    begun = TaskStore(engine).begin(UUID(task_id), lambda one: message_for(broker, one))
    assert begun is not None
    return UUID(begun.message.message_id)


def project(broker: RedisBroker, engine: Engine) -> None:
    with engine.connect() as connection:
        while Projector(broker, engine).project_batch(connection):
            pass


def test_what_was_not_sent_is_sent_with_the_same_id_and_once(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler
) -> None:
    task_id = create(api, description="x", priority=1)
    job_id = begin_only(broker, engine, task_id)
    assert reconciler.step() == 0, "whoever has begun it may be about to send it"
    make_due(engine)
    assert reconciler.step() == 1
    make_due(engine)
    reconciler.step()
    assert broker.wire.backlog("high-priority") == 1
    record = broker.find_record(str(job_id))
    assert record is not None
    assert record["type"] == "agent.run"
    assert runs_left(engine)[0].sent_at is not None
    assert task(api, task_id)["job_id"] == str(job_id)


def test_what_was_sent_and_not_noted_is_not_sent_again(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler
) -> None:
    execute(api, create(api))
    with engine.begin() as connection:
        connection.execute(update(runs).values(sent_at=None, look_at=func.now()))
    reconciler.step()
    assert broker.wire.backlog("default") == 1
    assert runs_left(engine)[0].sent_at is not None


def test_several_reconcilers_send_once(api: Api, broker: RedisBroker, engine: Engine) -> None:
    begun = [begin_only(broker, engine, create(api)) for _ in range(20)]
    make_due(engine)
    several = [TaskReconciler(broker, engine) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda one: one.step(), several)) == len(begun)
    assert broker.wire.backlog("default") == len(begun)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize(
    ("description", "status"), [("do it", "completed"), ("fail here", "failed")], ids=["success", "failure"]
)
def test_an_outcome_that_never_arrived_is_written(
    api: Api,
    broker: RedisBroker,
    engine: Engine,
    reconciler: TaskReconciler,
    start_worker: Callable[..., Any],
    description: str,
    status: str,
    projected: bool,
) -> None:
    # Nobody serves the queue `task-outcomes` here.
    task_id = create(api, description=description)
    job_id = execute(api, task_id)
    start_worker()
    eventually(lambda: api.get(f"/jobs/{job_id}").body["is_terminal"])
    if projected:
        project(broker, engine)
    assert task(api, task_id)["status"] == "in_progress"
    make_due(engine)
    reconciler.step()
    ended, job = task(api, task_id), api.get(f"/jobs/{job_id}").body
    assert ended["status"] == status
    assert ended["result"] == job.get("result")
    assert ended["error_message"] == ("ValueError: fail here" if status == "failed" else None)
    assert runs_left(engine) == []


def test_a_running_job_is_left_alone(
    api: Api,
    calls: Calls,
    broker: RedisBroker,
    engine: Engine,
    reconciler: TaskReconciler,
    start_worker: Callable[..., Any],
) -> None:
    task_id = create(api, description="wait")
    execute(api, task_id)
    start_worker()
    eventually(lambda: len(calls) == 1)
    make_due(engine, timedelta(hours=1))
    reconciler.step()
    assert task(api, task_id)["status"] == "in_progress"
    assert broker.wire.backlog("default") == 1
    calls.append(("go on",))


def test_a_job_that_was_lost_with_redis_is_sent_again(
    api: Api,
    calls: Calls,
    outcomes: None,
    broker: RedisBroker,
    engine: Engine,
    reconciler: TaskReconciler,
    start_worker: Callable[..., Any],
) -> None:
    task_id = create(api, description="x")
    job_id = execute(api, task_id)
    keys = list(broker.client.scan_iter(f"*{broker.namespace}*"))
    broker.client.delete(*keys)
    make_due(engine)
    reconciler.step()
    assert broker.wire.backlog("default") == 0, "not before it is certain"
    make_due(engine, timedelta(seconds=LOST_AFTER_SECONDS + 1))
    reconciler.step()
    start_worker()
    eventually(lambda: task(api, task_id)["status"] == "completed")
    assert task(api, task_id)["job_id"] == job_id
    assert len(calls) == 1


def test_a_job_that_vanished_from_a_redis_that_knows_it_fails(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler
) -> None:
    task_id = create(api)
    execute(api, task_id)
    broker.flush("default")
    make_due(engine, timedelta(seconds=LOST_AFTER_SECONDS + 1))
    reconciler.step()
    assert (task(api, task_id)["status"], task(api, task_id)["error_message"]) == ("failed", LOST)
    assert broker.wire.backlog("default") == 0


def test_the_success_of_a_replayed_job_completes_its_task(
    api: Api, calls: Calls, outcomes: None, broker: RedisBroker, start_worker: Callable[..., Any]
) -> None:
    task_id = create(api, description="fail once")
    job_id = execute(api, task_id)
    start_worker()
    eventually(lambda: task(api, task_id)["status"] == "failed")
    letters = DeadLetters(broker)
    letter = letters.get(job_id)
    assert letter is not None
    mended = {"task_id": task_id, "task_type": "agent.run", "description": "mended"}
    assert letters.replay(letter, by="ada", payload=mended) is Replay.DONE
    eventually(lambda: task(api, task_id)["status"] == "completed")
    assert task(api, task_id)["result"] == {"answer": "mended"}
    assert task(api, task_id)["job_id"] == job_id


def test_a_run_that_can_not_be_looked_at_holds_up_no_other(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler
) -> None:
    bad, good = create(api), create(api)
    begin_only(broker, engine, bad)
    with engine.begin() as connection:
        connection.execute(update(runs).values(message=b"no message"))
    begin_only(broker, engine, good)
    make_due(engine)
    assert reconciler.step() == 2
    assert broker.wire.backlog("default") == 1


def test_looks_become_rarer_and_are_bounded(api: Api, engine: Engine, reconciler: TaskReconciler) -> None:
    execute(api, create(api))
    pauses: list[float] = []
    for _ in range(8):
        make_due(engine)
        reconciler.step()
        with engine.connect() as connection:
            [pause] = connection.execute(select(func.extract("epoch", runs.c.look_at - func.now()))).scalars()
        pauses.append(float(pause))
    assert [round(pause) for pause in pauses] == [2, 4, 8, 16, 32, 60, 60, 60]


def test_the_stored_message_is_the_one_that_is_sent(api: Api, broker: RedisBroker, engine: Engine) -> None:
    job_id = execute(api, create(api, description="x", priority=7))
    [run] = runs_left(engine)
    message = decode_message(run.message)
    assert (message.message_id, message.queue_name, message.actor_name) == (job_id, "default", "agent.run")
    assert message.options["priority"] == 6


def test_each_state_of_a_job_has_one_status_of_a_task() -> None:
    statuses = {
        status: {state.value for state, own in TASK_STATUS_OF.items() if own is status} for status in TaskStatus
    }
    assert statuses == {
        TaskStatus.PENDING: set(),
        TaskStatus.IN_PROGRESS: {"scheduled", "pending", "waiting", "running", "retrying"},
        TaskStatus.COMPLETED: {"succeeded"},
        TaskStatus.FAILED: {"dead"},
        TaskStatus.CANCELLED: {"cancelled"},
    }


def test_redis_that_is_away_raises_and_leaves_the_run_for_later(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_only(broker, engine, create(api))
    make_due(engine)

    def refuse(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("away", may_be_stored=False)

    with monkeypatch.context() as away:
        away.setattr(broker, "find_record", refuse)
        with pytest.raises(BrokerUnavailable):
            reconciler.step()
    assert runs_left(engine)[0].sent_at is None
    make_due(engine)
    reconciler.step()
    assert broker.wire.backlog("default") == 1


def test_a_job_that_a_reconciler_has_sent_stays_its_tasks_though_another_send_was_refused(
    api: Api, broker: RedisBroker, engine: Engine, reconciler: TaskReconciler
) -> None:
    task_id = create(api)
    begun = TaskStore(engine).begin(UUID(task_id), lambda one: message_for(broker, one))
    assert begun
    make_due(engine)
    reconciler.step()
    # Whoever has begun was refused before, since another job had the unique key, and says so only now.
    TaskStore(engine).withdraw(UUID(begun.message.message_id), begun.before)
    assert task(api, task_id)["status"] == "in_progress"
    assert len(runs_left(engine)) == 1
