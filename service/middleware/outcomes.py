"""Puts on each delivery how its run ended: the worker settles it with that, in one step with the event."""

from time import time
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.outcome import Dead, Failure, Reason, succeeded


class Outcomes(Middleware):
    """Decides between success and death by the verdict of the middleware after it."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        assert isinstance(message, Delivery)
        if exception is None:
            message.outcome = succeeded(result)
        elif message.outcome is None:
            # No verdict of Retries (a hook of somebody else's failed before it): a failure is never a success.
            message.fail()
            message.outcome = Dead(Failure.of(exception))

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        if message.failed:
            failure = Failure("Skipped", "The job was too old to run, or was refused before it ran", "")
            message.outcome = Dead(failure, Reason.EXPIRED if _is_outdated(broker, message) else Reason.FAILED)
        else:
            message.outcome = succeeded(None)


def _is_outdated(broker: Broker, message: MessageProxy) -> bool:
    # As AgeLimit, whose refusal says no more than that of any other middleware.
    assert isinstance(broker, RedisBroker)
    max_age = message.options.get("max_age") or broker.get_actor(message.actor_name).options.get("max_age")
    return bool(max_age) and time() * 1000 - message.message_timestamp >= max_age
