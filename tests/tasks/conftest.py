"""What the tests of tasks share: actors that carry tasks out, the API served on them, and the database."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from sqlalchemy import Engine, select

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job, RetryAfter
from service.state.database import engine_for
from service.state.history import History
from service.state.task_tables import runs
from service.tasks import outcome_job
from tests.api.conftest import Api, serve

__all__ = ["serve"]

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls(broker: RedisBroker) -> Calls:
    """Declares the actors. What they were called with is here."""
    noted: Calls = []
    common: Any = {"broker": broker, "max_retries": 1, "min_backoff": 0, "max_backoff": 0}

    @dramatiq.actor(actor_name="agent.run", actor_class=Job, **common)
    def run(*, task_id: str, task_type: str, description: str) -> dict[str, str]:
        noted.append((task_id, task_type, description))
        if description == "wait":
            while len(noted) < 2:
                time.sleep(0.01)
        if description == "once more" and len(noted) == 1:
            raise RetryAfter(0.5)
        if description.startswith("fail"):
            raise ValueError(description)
        return {"answer": description}

    @dramatiq.actor(actor_name="agent.plain", **common)
    def plain(description: str) -> str:
        noted.append((description,))
        return description

    @dramatiq.actor(actor_name="parcel.send", actor_class=Job, **common)
    def other(*, to: str, description: str = "") -> None: ...

    @dramatiq.actor(actor_name="tick", **common)
    def nothing() -> None: ...

    broker.declare_alias("research", run)
    broker.declare_queue("high-priority")
    return noted


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = engine_for(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def api(broker: RedisBroker, calls: Calls, engine: Engine, serve: Callable[[Any], Api]) -> Api:
    return serve(build_app(broker, History(engine, broker)))


@pytest.fixture
def outcomes(broker: RedisBroker, engine: Engine) -> None:
    """Lets the worker of this process write outcomes."""
    outcome_job.declare(broker, lambda: engine)


def create(api: Api, **task: Any) -> str:
    answer = api.ask("POST", "/api/task-queue", json={"task_type": "agent.run", **task})
    assert answer.status == 201, answer.body
    return answer.body["task_id"]


def execute(api: Api, task_id: str) -> str:
    answer = api.ask("POST", f"/api/task-queue/{task_id}/execute")
    assert answer.status == 200, answer.body
    assert (answer.body["status"], answer.body["task_id"]) == ("queued", task_id)
    return answer.body["job_id"]


def task(api: Api, task_id: str) -> dict[str, Any]:
    answer = api.get(f"/api/task-queue/{task_id}")
    assert answer.status == 200, answer.body
    return answer.body


def runs_left(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(runs)))
