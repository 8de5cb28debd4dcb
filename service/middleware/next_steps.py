"""Sends the next step of a pipeline, as Dramatiq's Pipelines does, which imports a module for every job."""

from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Pipelines


class NextSteps(Pipelines):
    """Dramatiq's Pipelines, for the messages that are part of one."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if "pipe_target" in message.options:
            super().after_process_message(broker, message, result=result, exception=exception)
