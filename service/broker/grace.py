"""How long a worker that is told to stop may go on: its grace period, less what giving back takes.

The grace period runs from the first word, whether that is `callboard drain` or SIGTERM: Kubernetes counts its hook too.
"""

from collections.abc import Iterable

from service.queues import policy_of

#: Of the grace period, above the longest time limit: a job that has just begun has its whole time.
ABOVE_LIMIT_SECONDS = 30.0
#: To notice the signal, interrupt what still runs, and settle it; of a short grace period, a third.
STOP_SECONDS = 15.0


def grace_seconds_of(queues: Iterable[str], set_to: float | None) -> float:
    """Return the grace period of a worker of these queues: what the settings say, or what their time limits need."""
    return set_to or max(policy_of(queue).time_limit_seconds for queue in queues) + ABOVE_LIMIT_SECONDS


def working_seconds_of(grace_seconds: float) -> float:
    """Return how much of a grace period running jobs have."""
    return grace_seconds - min(STOP_SECONDS, grace_seconds / 3)
