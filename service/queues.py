"""The queues and their policy: one typed table. A new queue is one more row here.

A pod serves some of these queues; Kubernetes runs one deployment for each. Every number is a default that an actor
may override where it is declared, except `concurrency` and `lease_seconds`, which belong to the queue.
"""

from dataclasses import dataclass, field
from types import MappingProxyType

from service.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: `delay_seconds * factor ** retries so far`, up to `cap_seconds`.

    Up to the part `jitter` of it is added at random, within the cap, so that jobs that failed together do not come back
    together. With `jitter=0` the rule is kept to the millisecond. Raises DeclarationError for what can't be.
    """

    delay_seconds: float = 60.0
    cap_seconds: float = 3600.0
    factor: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.factor <= MOST_FACTOR:
            raise DeclarationError(f"Backoff(factor={self.factor}): 1 <= factor <= {MOST_FACTOR} must hold")
        if not 0 <= self.jitter <= 1:
            raise DeclarationError(f"Backoff(jitter={self.jitter}): 0 <= jitter <= 1 must hold")
        if not 0 <= self.delay_seconds <= self.cap_seconds <= MAX_DELAY_SECONDS:
            raise DeclarationError(
                f"Backoff(delay_seconds={self.delay_seconds}, cap_seconds={self.cap_seconds}): "
                f"0 <= delay_seconds <= cap_seconds <= {MAX_DELAY_SECONDS} must hold"
            )


MOST_FACTOR = 1000
#: Seven days: the longest that Dramatiq lets a message wait.
MAX_DELAY_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What holds for every job of one queue.

    concurrency: jobs of this queue that one worker process runs at the same time, also when it serves other queues.
    processes: worker processes that `callboard worker QUEUE` keeps running.
    time_limit_seconds: a job that runs longer is interrupted; soft_time_limit_seconds comes first where it is set.
    max_attempts: runs in all, the first one included.
    lease_seconds: how long a delivery stays with a worker that is not heard of.
    fetch_ahead: whether a worker may hold messages beyond those it is running. Long jobs must not: what one worker
        holds, an idle one can't start.
    needs_database: whether its jobs need DATABASE_URL. A worker without it leaves the queue to others.
    """

    name: str
    concurrency: int
    processes: int = 1
    time_limit_seconds: float = 300.0
    soft_time_limit_seconds: float | None = None
    max_attempts: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    lease_seconds: float = 30.0
    fetch_ahead: bool = True
    needs_database: bool = False


#: Of jobs that write into an agent's task what its job has come to.
TASK_OUTCOMES = "task-outcomes"

QUEUES: MappingProxyType[str, QueuePolicy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            QueuePolicy("email", concurrency=50),
            QueuePolicy("default", concurrency=10),
            QueuePolicy("high-priority", concurrency=2),
            QueuePolicy("webhooks", concurrency=20),
            QueuePolicy(
                "reports",
                concurrency=5,
                soft_time_limit_seconds=3000.0,
                time_limit_seconds=3600.0,
                fetch_ahead=False,
            ),
            QueuePolicy("media", concurrency=5, fetch_ahead=False),
            QueuePolicy("ai", concurrency=2, fetch_ahead=False),
            QueuePolicy(TASK_OUTCOMES, concurrency=4, needs_database=True),
        )
    }
)


def policy_of(queue_name: str) -> QueuePolicy:
    """Return the policy of a queue. Raises DeclarationError for a name that is not in the table."""
    try:
        return QUEUES[queue_name]
    except KeyError:
        known = ", ".join(QUEUES)
        raise DeclarationError(
            f"Unknown queue {queue_name!r}; known queues: {known}. A new queue is a row in service/queues.py."
        ) from None
