"""The status of an agent's task, and how it follows from the state of the job that carries the task out.

pending ──► in_progress, cancelled          a task is in_progress from its execution to the end of its job
in_progress ──► completed, failed, cancelled
completed, failed, cancelled ──► in_progress (executed again), pending (put back)
failed ──► completed                        its dead job was replayed by an operator, and succeeded
"""

from enum import StrEnum
from types import MappingProxyType

from service.state.states import State


class TaskStatus(StrEnum):
    """Where a task is, as the table of tasks has it."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: What a task is while its job is in a state. A job that is to be tried again leaves its task in progress.
TASK_STATUS_OF: MappingProxyType[State, TaskStatus] = MappingProxyType(
    {
        State.SCHEDULED: TaskStatus.IN_PROGRESS,
        State.PENDING: TaskStatus.IN_PROGRESS,
        State.WAITING: TaskStatus.IN_PROGRESS,
        State.RUNNING: TaskStatus.IN_PROGRESS,
        State.RETRYING: TaskStatus.IN_PROGRESS,
        State.SUCCEEDED: TaskStatus.COMPLETED,
        State.DEAD: TaskStatus.FAILED,
        State.CANCELLED: TaskStatus.CANCELLED,
    }
)

#: What a client may set by itself; the others are what the job has come to.
SET_BY_CLIENTS = frozenset({TaskStatus.PENDING, TaskStatus.CANCELLED})
