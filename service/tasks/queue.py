"""What clients do with tasks: the store, with the checks before it and the job after it."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, CallboardError, HistoryUnavailable
from service.state.history import History
from service.state.pause import Pause
from service.state.task_states import TaskStatus
from service.tasks.cancellation import Cancellation
from service.tasks.reconciler import ONCE_WITHIN_SECONDS
from service.tasks.store import Begun, Page, TaskStore
from service.tasks.task import Task
from service.tasks.types import message_for

logger = logging.getLogger(__name__)


class TaskQueue:
    """Raises HistoryUnavailable where the database can't be used; after a wait for nothing at once, for a second."""

    def __init__(self, broker: RedisBroker, history: History) -> None:
        self._broker = broker
        self._store = TaskStore(history.engine)
        self._cancellation = Cancellation(broker, history)
        self._postgresql = Pause(HistoryUnavailable)
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))

    def create(self, task_type: str, description: str, priority: int) -> Task:
        """Store a task. Raises UnknownTaskType, and PayloadError where its job could not be sent."""
        now = datetime.now(UTC)
        pending = TaskStatus.PENDING
        self._check(Task(uuid4(), task_type, description, priority, pending, None, None, None, now, None, None))
        with self._postgresql.around():
            return self._store.create(task_type, description, priority)

    def find(self, task_id: UUID) -> Task | None:
        """Return a task, or None."""
        with self._postgresql.around():
            return self._store.find(task_id)

    def page(self, status: TaskStatus | None, task_type: str | None, cursor: str | None, limit: int) -> Page:
        """List tasks, the newest first. Raises InvalidRequest for a cursor that is none."""
        with self._postgresql.around():
            return self._store.page(status, task_type, cursor, limit)

    def change(self, task_id: UUID, wanted: Mapping[str, Any], by: str) -> Task | None:
        """Change a task, and return it, or None. Raises as `create`, TaskRunning, and Conflict.

        One in progress that is to be cancelled has its job cancelled: while that ends, it is returned as in progress.
        """
        if wanted.get("status") is TaskStatus.CANCELLED and (task := self._cancelled(task_id, wanted, by)):
            return task
        if {"task_type", "description"} & wanted.keys():
            task = self.find(task_id)
            if task is None:
                return None
            self._check(replace(task, **wanted))
        with self._postgresql.around():
            return self._store.change(task_id, wanted)

    def delete(self, task_id: UUID, by: str) -> bool:
        """Delete a task, and return whether it was there. The job of one in progress is cancelled first.

        Raises TaskRunning where it was executed again meanwhile.
        """
        task = self.find(task_id)
        if task is None or task.status is not TaskStatus.IN_PROGRESS:
            cancelled = None
        else:
            self._cancellation.cancel(task, by)
            cancelled = task.job_id
        with self._postgresql.around():
            return self._store.delete(task_id, cancelled)

    def _cancelled(self, task_id: UUID, wanted: Mapping[str, Any], by: str) -> Task | None:
        """Return a task in progress after its job was cancelled; None where it is none, or has ended otherwise."""
        task = self.find(task_id)
        if task is None or task.status is not TaskStatus.IN_PROGRESS:
            return None
        if any(getattr(task, name) != value for name, value in wanted.items() if name != "status"):
            return None  # it is refused, with nothing done
        has_ended = self._cancellation.cancel(task, by)
        after = self.find(task_id) if has_ended else task
        return after if after and after.status in (TaskStatus.IN_PROGRESS, TaskStatus.CANCELLED) else None

    def execute(self, task_id: UUID) -> UUID | None:
        """Begin a task: return the id of its job, or None where there is no such task.

        The task is in progress when this returns. Where Redis can't be used, a reconciler sends the job as soon as it
        can. Raises UnknownTaskType, TaskRunning, and JobExists where the actor's unique key refuses the job.
        """
        with self._postgresql.around():
            begun = self._store.begin(task_id, partial(message_for, self._broker))
        if begun is None:
            return None
        job_id = UUID(begun.message.message_id)
        try:
            with self._redis.around():
                self._broker.enqueue_once(begun.message, ONCE_WITHIN_SECONDS)
        except BrokerUnavailable as error:
            logger.warning("The job of a task is sent later: %s", error, extra={"job_id": str(job_id)})
            return job_id
        except CallboardError:
            self._withdraw(job_id, begun)
            raise
        # What is not noted is found in Redis by the reconciler.
        with suppress(HistoryUnavailable), self._postgresql.around():
            self._store.note_sent(job_id)
        return job_id

    def _withdraw(self, job_id: UUID, begun: Begun) -> None:
        # Where the database is gone, the reconciler tries to send it, and writes why that fails.
        with suppress(HistoryUnavailable):
            self._store.withdraw(job_id, begun.before)

    def _check(self, task: Task) -> None:
        self._broker.row(message_for(self._broker, task), None)
