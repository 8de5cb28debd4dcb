"""What a job's end sends: the next step of its pipeline, and its callbacks. An outage delays these and loses none.

They are sent before the job is settled: a crash in between runs the job again, and sends them again.
"""

from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Callbacks, Pipelines

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.outcome import Snoozed


class NextSteps(Pipelines):
    """Dramatiq's Pipelines, which imports a module for every job: only for the messages that are part of one."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(broker, RedisBroker)
        if "pipe_target" in message.options:
            with broker.insisting():
                super().after_process_message(broker, message, result=result, exception=exception)


class OwnCallbacks(Callbacks):
    """Dramatiq's Callbacks."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(broker, RedisBroker)
        assert isinstance(message, Delivery)
        if isinstance(message.outcome, Snoozed):
            return  # it has not failed
        with broker.insisting():
            super().after_process_message(broker, message, result=result, exception=exception)
