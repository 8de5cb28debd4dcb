"""The job that the running code belongs to, for actors and for logs."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.delivery import Delivery, Lease


@dataclass(slots=True)
class JobContext:
    """What an actor may know of its own job. `attempt` is 1 for the first run."""

    job_id: str
    actor: str
    queue: str
    attempt: int
    #: The same in every attempt: for outside services that take one.
    idempotency_key: str | None = None
    #: Rises with every delivery of the queue: what keeps the highest one refuses a holder whose lease was lost.
    fencing_token: int = 0
    #: Whether the worker's own call of the actor is still to come: it alone carries JSON.
    awaits_call: bool = True
    #: The encoded message of a job that is to run in a process of its own, until it does.
    suspect: bytes | None = None
    #: Whether its death would be the job's last.
    is_last_delivery: bool = False
    time_limit_ms: float = 0
    lease: Lease | None = None


#: Dramatiq's own.
DEFAULT_TIME_LIMIT_MS = 600_000

_current: ContextVar[JobContext | None] = ContextVar("current_job", default=None)


def set_current_job(context: JobContext | None) -> None:
    """Say which job the code that follows runs for."""
    _current.set(context)


def current_job_or_none() -> JobContext | None:
    """Return the job that this code runs for, or None outside of one."""
    return _current.get()


class CurrentJob(Middleware):
    """Sets the context before a job and clears it after, since worker threads are used again."""

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        assert isinstance(broker, RedisBroker)
        actor = broker.get_actor(message.actor_name)
        lease = message.lease
        context = JobContext(message.message_id, actor.actor_name, message.queue_name, lease.attempt)
        context.fencing_token = int(lease.token)
        context.idempotency_key = lease.key or None
        if lease.is_suspect:
            context.suspect = message.encode()
            context.lease = lease
            context.time_limit_ms = message.options.get("time_limit") or actor.options.get(
                "time_limit", DEFAULT_TIME_LIMIT_MS
            )
            context.is_last_delivery = message.lease.lapses + 1 >= message.lease.max_deliveries
        set_current_job(context)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        _current.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        _current.set(None)
