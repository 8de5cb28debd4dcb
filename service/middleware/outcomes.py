"""Puts on each delivery how its run ended: the worker settles it with that, in one step with the event."""

import logging
from typing import Any

import redis
from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.consumer import Delivery
from service.broker.outcome import Dead, Failure, RetryLater, succeeded

logger = logging.getLogger(__name__)


class Outcomes(Middleware):
    """Records the start, and decides between success and death by the verdict of the middleware after it."""

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(broker, RedisBroker)
        assert isinstance(message, Delivery)
        try:
            broker.record_start(message)
        except redis.RedisError as error:
            # The job goes on: its end is recorded with its settlement, which is repeated until Redis answers.
            logger.warning("The start could not be recorded: %s", error, extra={"job_id": message.message_id})

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(message, Delivery)
        if exception is None:
            message.outcome = succeeded(result)
        elif not isinstance(message.outcome, RetryLater):
            # No verdict of Retries (a hook of somebody else's failed before it): a failure is never a success.
            message.fail()
            message.outcome = Dead(Failure.of(exception))

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        if message.failed:
            message.outcome = Dead(Failure("Skipped", "The job was too old to run, or was refused before it ran", ""))
        else:
            message.outcome = succeeded(None)
