"""What a job's end sends: the next step of its pipeline, and its callbacks. An outage delays these and loses none.

What follows a success goes out with the settlement, in one step. What follows a failure is sent before it: a crash in
between runs the job again, and sends that again.
"""

from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Callbacks, Pipelines

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.outcome import Cancelled, Snoozed
from service.broker.outgoing import collect
from service.middleware.context import current_job_or_none


class NextSteps(Pipelines):
    """Dramatiq's Pipelines, which imports a module for every job: only for the messages that are part of one."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(broker, RedisBroker)
        context = current_job_or_none()
        if "pipe_target" in message.options and context:
            with broker.insisting(), collect(context.follow_ups):
                super().after_process_message(broker, message, result=result, exception=exception)


class OwnCallbacks(Callbacks):
    """Dramatiq's Callbacks."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(broker, RedisBroker)
        assert isinstance(message, Delivery)
        if isinstance(message.outcome, Snoozed | Cancelled):
            return  # it has not failed
        context = current_job_or_none()
        if exception is None and context:
            options = broker.get_actor(message.actor_name).options
            if "on_success" in message.options or "on_success" in options:
                with broker.insisting(), collect(context.follow_ups):
                    super().after_process_message(broker, message, result=result, exception=exception)
            return
        with broker.insisting():
            super().after_process_message(broker, message, result=result, exception=exception)
