"""The chain around every actor: one concept a file, composed here in one written order.

`before_*` hooks run down the list and `after_*` hooks up it, so whatever must see the verdict of a later one stands
before it. A plain exception in a hook is logged by Dramatiq and otherwise ignored.
"""

from dramatiq.middleware import Middleware

from service.middleware.context import CurrentJob
from service.middleware.deaths import Deaths
from service.middleware.defaults import QueueDefaults
from service.middleware.event_loop import EventLoop
from service.middleware.expiry import Expiry
from service.middleware.follow_ups import NextSteps, OwnCallbacks
from service.middleware.idempotency import Idempotency
from service.middleware.isolation import Isolation
from service.middleware.outcomes import Outcomes
from service.middleware.payload_options import PayloadOptions
from service.middleware.probe import WorkerProbe
from service.middleware.retries import Retries
from service.middleware.shutdown_notices import ShutdownNotices
from service.middleware.task_outcomes import TaskOutcomes
from service.middleware.time_limit import TimeLimit
from service.middleware.unique import UniqueJobs


def chain() -> list[Middleware]:
    """Return a fresh chain for one broker."""
    return [
        WorkerProbe(),  # first to start and last to stop: a worker must be seen while the rest boots and drains
        QueueDefaults(),  # fills in the queue's policy before any other looks at an actor's options
        PayloadOptions(),  # only checks what an actor declares
        Idempotency(),  # checks options only: the scripts that lease and settle a job decide
        UniqueJobs(),  # checks options only: the script that stores a job decides
        Isolation(),  # wraps the actor's function itself, inside of all hooks: nothing is interrupted outside of it
        CurrentJob(),  # outside all that may run the job's code or log about it
        Outcomes(),  # before Retries, whose verdict it reads on the way up
        Expiry(),  # before the clock of the time limit starts: an outdated job does not run
        TimeLimit(),  # interrupts the job
        ShutdownNotices(),  # interrupts the job, where its actor asks for that
        OwnCallbacks(),  # after success or death, sends what the author named
        NextSteps(),  # after success, sends the next step with the result
        TaskOutcomes(),  # after success or death, says so of an agent's task
        Deaths(),  # called by the broker for each dead letter, so its place is of no matter
        EventLoop(),  # the event loop of `async def` actors, one for a process
        Retries(),  # last, so that its verdict is the first on the way up
    ]
