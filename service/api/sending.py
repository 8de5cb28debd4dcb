"""Sends what requests asked for. After a send that waited for nothing, others are refused at once for a second."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from dramatiq.message import Message

from service.api.group_sends import GroupSends, Send
from service.api.idempotency import KEPT_SECONDS, IdempotentSends
from service.api.idempotency_key import IdempotencyKey
from service.broker import RedisBroker
from service.broker.unique_keys import Met
from service.errors import BrokerUnavailable, PayloadError
from service.state.pause import Pause


class Sender:
    """Sends messages through a broker."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._redis = Pause(lambda reason: BrokerUnavailable(reason, may_be_stored=False))
        self._groups = GroupSends(self.send_group)
        self._idempotent = IdempotentSends(broker, self._send_once)

    async def send(self, send: Send) -> Met | None:
        """Store a message in its queue, together with those of other requests. Returns the job that it met, if any.

        Raises BrokerUnavailable, and what is wrong with the message itself.
        """
        return await self._groups.send(send)

    def send_for_key(self, send: Send, key: IdempotencyKey) -> tuple[UUID, bool]:
        """Store a message unless the key's first request has. Returns the job's id, and whether it is that one's.

        Raises BrokerUnavailable, and what IdempotentSends raises.
        """
        with self._redis.around():
            return self._idempotent.send(key, send)

    def send_group(self, sends: Sequence[Send]) -> Sequence[Exception | Met | None]:
        """Store messages in few calls. Returns for each what went wrong, the job that it has met, or None."""
        errors: dict[str, Exception | Met] = {}
        try:
            with self._redis.around():
                delays_ms = {send.message.message_id: send.delay_ms for send in sends if send.delay_ms is not None}
                report = self._broker.send_many([send.message for send in sends], delays_ms=delays_ms)
                errors = {**report.met, **{message.message_id: error for message, error in report.failed}}
                if outages := [error for error in errors.values() if isinstance(error, BrokerUnavailable)]:
                    raise outages[0]  # for those who come next: these have their own
        except BrokerUnavailable as outage:
            if not errors:
                return [outage] * len(sends)
        return [_as_answer(errors.get(send.message.message_id), send.message) for send in sends]

    def _send_once(self, send: Send) -> Met | None:
        try:
            met = self._broker.enqueue_once(send.message, KEPT_SECONDS, delay_ms=send.delay_ms)
        except RecursionError as error:
            raise _too_deep(send.message) from error
        return met if isinstance(met, Met) else None


def _as_answer(error: Exception | Met | None, message: Message[Any]) -> Exception | Met | None:
    return _too_deep(message) if isinstance(error, RecursionError) else error


def _too_deep(message: Message[Any]) -> PayloadError:
    # It is written deeper inside of calls than where it was checked, and nothing has been sent.
    return PayloadError(message.actor_name, [("", "is nested too deeply")])
