"""A job that has waited for longer than it may does not run any more."""

import logging
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import AgeLimit, MiddlewareError, SkipMessage

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.outcome import Dead, Failure, Reason
from service.errors import DeclarationError, Expired

logger = logging.getLogger(__name__)


class WouldExpire(DeclarationError, MiddlewareError):
    """A delay is longer than the job may wait. As a MiddlewareError it ends the send: Dramatiq swallows all others."""


class Expiry(AgeLimit):
    """Holds the option `expires_ms` of an actor: milliseconds from the send, by Redis's own clock.

    No attempt starts later, whether the job waited for a worker, its due time or its next attempt. Dramatiq's own
    `max_age`, by the clocks of sender and worker, keeps its meaning.
    """

    @property
    def actor_options(self) -> set[str]:
        return {"max_age", "expires_ms"}

    def before_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        assert isinstance(broker, RedisBroker)
        if not delay or "retries" in message.options or not broker.is_named(message.actor_name):
            return
        limit_ms = broker.get_actor(message.actor_name).options.get("expires_ms")
        if limit_ms and delay >= limit_ms:
            raise WouldExpire(
                f"{message.actor_name}: delay={delay} ms is not less than expires={limit_ms / 1000:g} s: "
                "the job would never run"
            )

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        assert isinstance(broker, RedisBroker)
        options = broker.get_actor(message.actor_name).options
        if limit_ms := options.get("expires_ms"):
            # A dead letter that was replayed has waited for an operator, which is not held against it.
            since_ms = max(message.lease.created_ms, message.options.get("replayed_ms", 0))
            waited_ms = message.lease.started_ms - since_ms
            if waited_ms >= limit_ms:
                message.fail()
                raise _expired(message, f"The job waited for {waited_ms / 1000:g} s, and may for {limit_ms / 1000:g} s")
        if options.get("max_age") or "max_age" in message.options:
            try:
                super().before_process_message(broker, message)
            except SkipMessage as error:
                raise _expired(message, str(error)) from None


def _expired(message: Delivery, text: str) -> SkipMessage:
    logger.warning(text, extra={"job_id": message.message_id, "actor": message.actor_name})
    message.outcome = Dead(Failure.of(Expired(text)), Reason.EXPIRED)
    return SkipMessage(text)
