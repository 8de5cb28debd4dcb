"""A task, and what may be changed of it when."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from service.errors import Conflict, TaskRunning
from service.state.task_states import SET_BY_CLIENTS, TaskStatus

DEFAULT_PRIORITY = 5
#: Up to this priority a task is for the queue `high-priority`.
LAST_URGENT = 3


@dataclass(frozen=True, slots=True)
class Task:
    """One row. `priority` 1 (first) to 10; `job_id` is that of the newest execution; times are UTC."""

    task_id: UUID
    task_type: str
    description: str
    priority: int
    status: TaskStatus
    result: Any
    error_message: str | None
    job_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None

    @property
    def queue(self) -> str:
        """The queue of its job."""
        return "high-priority" if self.priority <= LAST_URGENT else "default"


#: Of a task that is put back to pending: nothing of the execution before is left.
NOT_EXECUTED: dict[str, Any] = {
    "result": None,
    "error_message": None,
    "job_id": None,
    "started_at": None,
    "completed_at": None,
}


def changes_of(task: Task, wanted: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the columns that a client's change sets. Raises TaskRunning, Conflict.

    task_type, description and priority may change while no job works on the task; so may its status, to pending or
    cancelled.
    """
    changes = {name: value for name, value in wanted.items() if value != getattr(task, name)}
    if not changes:
        return {}
    if task.status is TaskStatus.IN_PROGRESS:
        raise TaskRunning(str(task.task_id), str(task.job_id))
    status = changes.get("status")
    if status is not None and status not in SET_BY_CLIENTS:
        names = " and ".join(sorted(SET_BY_CLIENTS))
        raise Conflict(f"status {status} is what a job comes to: clients set {names}, and execute the task")
    if status is TaskStatus.CANCELLED:
        if task.status is not TaskStatus.PENDING:
            raise Conflict(f"Task {task.task_id} is {task.status}: only what has not ended is cancelled")
        changes["completed_at"] = now
    if status is TaskStatus.PENDING:
        changes |= NOT_EXECUTED
    return changes
