"""A job that has waited for longer than it may does not run any more."""

import logging
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import AgeLimit, MiddlewareError, SkipMessage

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.outcome import Dead, Failure
from service.errors import DeclarationError, Expired

logger = logging.getLogger(__name__)


class WouldExpire(DeclarationError, MiddlewareError):
    """A delay is longer than the job may wait. As a MiddlewareError it ends the send: Dramatiq swallows all others."""


class Expiry(AgeLimit):
    """Holds the option `max_age`, in milliseconds from the send, by Redis's own clock: an actor's, or one message's.

    No attempt starts later, whether the job waited for a worker, its due time or its next attempt.
    """

    def before_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        if not delay or "retries" in message.options:
            return
        limit_ms = _limit_ms(broker, message)
        if limit_ms and delay >= limit_ms:
            raise WouldExpire(
                f"{message.actor_name}: delay={delay} ms is not less than expires={limit_ms / 1000:g} s: "
                "the job would never run"
            )

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        limit_ms = _limit_ms(broker, message)
        if not limit_ms:
            return
        waited_ms = message.lease.started_ms - message.lease.created_ms
        if waited_ms < limit_ms:
            return
        text = f"The job has waited for {waited_ms / 1000:g} s, and may wait for {limit_ms / 1000:g} s"
        logger.warning(text, extra={"job_id": message.message_id, "actor": message.actor_name})
        message.fail()
        message.outcome = Dead(Failure.of(Expired(text)))
        raise SkipMessage(f"{text}: its age limit is exceeded")


def _limit_ms(broker: Broker, message: Message[Any] | MessageProxy) -> float | None:
    assert isinstance(broker, RedisBroker)
    return message.options.get("max_age") or broker.get_actor(message.actor_name).options.get("max_age")
