"""The job that the running code belongs to, for actors and for logs."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.delivery import Delivery


@dataclass(slots=True)
class JobContext:
    """What an actor may know of its own job. `attempt` is 1 for the first run."""

    job_id: str
    actor: str
    queue: str
    attempt: int
    #: Whether the worker's own call of the actor is still to come: it alone carries JSON.
    awaits_call: bool = True
    #: What the worker has in its hands, until it calls the actor's function.
    delivery: Delivery | None = None


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
        context = JobContext(
            message.message_id, actor.actor_name, message.queue_name, message.attempt, delivery=message
        )
        set_current_job(context)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        _current.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        _current.set(None)
