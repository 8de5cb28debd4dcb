"""The job that writes into a task what its job has come to: by the queue `task-outcomes`, which needs the database.

It trusts nothing that it is given: how the job has ended it asks Redis and the database themselves.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import dramatiq

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, HistoryUnavailable, Snooze
from service.middleware.task_outcomes import ACTOR
from service.queues import TASK_OUTCOMES
from service.state.states import is_final

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from service.state.history import History
    from service.tasks.runs import Runs

#: For so long it waits for the database in its thread, so that an outage moves few of these jobs, and makes few events.
PATIENCE_SECONDS = 10.0
RETRY_SECONDS = 0.5
SNOOZE_SECONDS = 1.0


def declare(broker: RedisBroker, engine_of: "Callable[[], Engine]") -> None:
    """Declare the actor. It waits through an outage of the database, however long that is."""

    @cache
    def reached() -> "tuple[History, Runs]":
        # With the first job: each worker process of every queue declares this actor, and the imports take as long as
        # all others together.
        from service.state.history import History
        from service.tasks.runs import Runs

        engine = engine_of()
        return History(engine, broker), Runs(engine)

    def write(*, task_id: str, job_id: str) -> None:
        history, runs = reached()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                snapshot = history.find(UUID(job_id))
                if snapshot and is_final(snapshot.state):
                    runs.end(UUID(task_id), snapshot)
                return
            except (HistoryUnavailable, BrokerUnavailable):
                if time.monotonic() >= give_up_at:
                    raise Snooze(SNOOZE_SECONDS) from None
            time.sleep(RETRY_SECONDS)

    declare_actor = cast("Any", dramatiq.actor)
    declare_actor(write, broker=broker, actor_name=ACTOR, queue_name=TASK_OUTCOMES)
