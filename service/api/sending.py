"""Sends what a request asked for. After a send that waited for nothing, others are refused at once for a second."""

from typing import Any
from uuid import UUID

from dramatiq.message import Message

from service.api.idempotency import KEPT_SECONDS, IdempotentSends
from service.broker import RedisBroker
from service.errors import BrokerUnavailable, PayloadError
from service.state.pause import Pause


class Sender:
    """Sends messages through a broker."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))

        self._idempotent = IdempotentSends(broker, self._send_once)

    def send(self, message: Message[Any], key: str | None = None) -> tuple[UUID, bool]:
        """Store a message in its queue. Returns the job's id, and whether the job is that of an earlier request.

        Raises BrokerUnavailable, and for a key what IdempotentSends raises.
        """
        with self._redis.around():
            if key is not None:
                return self._idempotent.send(key, message)
            self._send(message, None)
            return UUID(message.message_id), False

    def _send_once(self, message: Message[Any]) -> None:
        self._send(message, KEPT_SECONDS)

    def _send(self, message: Message[Any], once_within_seconds: int | None) -> None:
        try:
            if once_within_seconds is None:
                self._broker.enqueue(message)
            else:
                self._broker.enqueue_once(message, once_within_seconds)
        except RecursionError:
            # It is written deeper inside of calls than where it was checked, and nothing has been sent.
            raise PayloadError(message.actor_name, [("", "is nested too deeply")]) from None
