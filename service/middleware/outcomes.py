"""Puts on each delivery how its run ended: the worker settles it with that, in one step with the event."""

from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker.delivery import Delivery
from service.broker.outcome import BY_ITSELF, Dead, Failure, Reason, succeeded
from service.middleware.context import current_job_or_none


class Outcomes(Middleware):
    """Decides between success and death by the verdict of the middleware after it."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(message, Delivery)
        if exception is None:
            message.outcome = succeeded(result)
            if (context := current_job_or_none()) and context.follow_ups.close():
                message.follow_ups = context.follow_ups
        elif message.outcome is None:
            # No verdict of Retries (a hook of somebody else's failed before it): a failure is never a success.
            message.fail()
            message.outcome = Dead(Failure.of(exception))

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        if message.is_cancelled:
            message.outcome = BY_ITSELF  # before it could start
        elif message.failed:
            refused = Failure("Skipped", "The job was refused before it ran", "")
            message.outcome = message.outcome or Dead(refused, Reason.FAILED)
        else:
            message.outcome = succeeded(None)
