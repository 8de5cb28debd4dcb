"""The states of a job, the transitions between them, and the four-valued status that clients read.

scheduled ──► scheduled, pending, waiting, running, retrying, dead, cancelled
pending   ──► scheduled, pending, waiting, running, retrying, dead, cancelled
waiting   ──► scheduled, pending, waiting, running, retrying, dead, cancelled
running   ──► scheduled, pending, waiting, running, retrying, succeeded, dead, cancelled
retrying  ──► waiting, running, retrying, dead, cancelled
dead      ──► pending, scheduled
succeeded     final
cancelled     final

A job is at its end in dead too: it leaves that state only when an operator replays it.
"""

from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a job is. An event carries the state that the job has reached."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Status(StrEnum):
    """The state as clients see it that want four. A job is `failed` only when no attempt is left."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


#: Each state, and where a job may go from it. A running job may run again, since its worker may have died; and may be
#: pending or scheduled again, since its worker may have given it back or left it to others for a while. What may
#: run may meet another job that holds its idempotency key, and wait for that. Of what waits, an operator may change
#: time and priority: it stays in its state, or is scheduled, pending or retrying by that. A dead job is pending or
#: scheduled again when it is replayed. A cancelled one never is.
TRANSITIONS: MappingProxyType[State, frozenset[State]] = MappingProxyType(
    {
        State.SCHEDULED: frozenset(
            {
                State.SCHEDULED,
                State.PENDING,
                State.WAITING,
                State.RUNNING,
                State.RETRYING,
                State.DEAD,
                State.CANCELLED,
            }
        ),
        State.PENDING: frozenset(
            {
                State.SCHEDULED,
                State.PENDING,
                State.WAITING,
                State.RUNNING,
                State.RETRYING,
                State.DEAD,
                State.CANCELLED,
            }
        ),
        State.WAITING: frozenset(
            {
                State.SCHEDULED,
                State.PENDING,
                State.WAITING,
                State.RUNNING,
                State.RETRYING,
                State.DEAD,
                State.CANCELLED,
            }
        ),
        State.RUNNING: frozenset(
            {
                State.SCHEDULED,
                State.PENDING,
                State.WAITING,
                State.RUNNING,
                State.RETRYING,
                State.SUCCEEDED,
                State.DEAD,
                State.CANCELLED,
            }
        ),
        State.RETRYING: frozenset({State.WAITING, State.RUNNING, State.RETRYING, State.DEAD, State.CANCELLED}),
        State.SUCCEEDED: frozenset(),
        State.DEAD: frozenset({State.PENDING, State.SCHEDULED}),
        State.CANCELLED: frozenset(),
    }
)

ENDS = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

STATUS_OF: MappingProxyType[State, Status] = MappingProxyType(
    {
        State.SCHEDULED: Status.PENDING,
        State.PENDING: Status.PENDING,
        State.WAITING: Status.PENDING,
        State.RETRYING: Status.PENDING,
        State.RUNNING: Status.RUNNING,
        State.SUCCEEDED: Status.SUCCEEDED,
        State.DEAD: Status.FAILED,
        State.CANCELLED: Status.FAILED,
    }
)


def is_final(state: State) -> bool:
    """Whether a job has ended. From there only an operator's replay of a dead one leads on."""
    return state in ENDS
