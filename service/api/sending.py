"""Sends what a request asked for. After a send that waited for nothing, others are refused at once for a second."""

from typing import Any

from dramatiq.message import Message

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, PayloadError
from service.state.pause import Pause


class Sender:
    """Sends messages through a broker."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))

    def send(self, message: Message[Any]) -> None:
        """Store a message in its queue. Raises BrokerUnavailable."""
        with self._redis.around():
            try:
                self._broker.enqueue(message)
            except RecursionError:
                # It is written deeper inside of calls than where it was checked, and nothing has been sent.
                raise PayloadError(message.actor_name, [("", "is nested too deeply")]) from None
