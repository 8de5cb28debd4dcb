"""The header `Idempotency-Key`: a client that repeats a request after a lost answer gets the job of the first one.

A record of the key is written before the job is sent, with the job's id and a hash of what was asked for. Whoever finds
a record whose request never ended sends the same id again, which Redis stores once: so a crash or a lost reply at any
point makes neither two jobs nor none.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import redis

from service.api.group_sends import Send
from service.api.idempotency_key import IdempotencyKey
from service.broker import RedisBroker
from service.broker.messages import copy_message
from service.broker.unique_keys import Met
from service.errors import BrokerUnavailable, CallboardError, IdempotencyKeyInFlight, IdempotencyKeyReused

KEPT_SECONDS = 24 * 3600
#: A request takes no longer: what is still open after that was cut off.
OPEN_SECONDS = 10


class _Record(NamedTuple):
    state: str
    at_ms: int
    request: str
    job_id: str

    def packed(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def unpack(cls, data: bytes) -> "_Record":
        state, at_ms, request, job_id = data.decode().split(" ")
        return cls(state, int(at_ms), request, job_id)


class IdempotentSends:
    """Sends each message of one key once. `send` stores one unless its id was stored within KEPT_SECONDS."""

    def __init__(self, broker: RedisBroker, send: Callable[[Send], Met | None]) -> None:
        self._broker = broker
        self._send = send

    def send(self, key: IdempotencyKey, send: Send) -> tuple[UUID, bool]:
        """Send a message for a key. Returns the job's id, and whether it is that of an earlier request.

        Raises IdempotencyKeyReused where it came with another request, IdempotencyKeyInFlight where that one has not
        ended, and BrokerUnavailable.
        """
        message = send.message
        mine = _Record("open", int(time.time() * 1000), _hash_of(send), message.message_id)
        name = self._name(key)
        found = self._ask(lambda: self._broker.client.set(name, mine.packed(), nx=True, get=True, ex=KEPT_SECONDS))
        if found is not None:
            first = _Record.unpack(found)
            if first.request != mine.request:
                raise IdempotencyKeyReused("This Idempotency-Key came with another request before")
            if first.state == "done":
                return UUID(first.job_id), True
            if 0 <= mine.at_ms - first.at_ms < OPEN_SECONDS * 1000:
                raise IdempotencyKeyInFlight("The first request with this Idempotency-Key has not ended yet")
            message = copy_message(message, message_id=first.job_id)
        try:
            met = self._send(send._replace(message=message))
        except Exception as error:
            self._let_go(name, mine._replace(job_id=message.message_id), error)
            raise
        job_id = met.job_id if met and met.how == "rescheduled" else message.message_id
        done = mine._replace(state="done", job_id=job_id)
        self._ask(lambda: self._broker.client.set(name, done.packed(), ex=KEPT_SECONDS))
        return UUID(job_id), found is not None

    def _let_go(self, name: str, mine: _Record, error: Exception) -> None:
        """Let a repetition go on at once, after a request that is about to be refused or to fail.

        Where the job may be stored it has to send the same id, and the record says so, as one that was cut off long
        ago. Where Redis can't be asked the record stays, and does not count for more than OPEN_SECONDS.
        """
        # Whoever has taken the key over meanwhile sends the same id, so that nothing is lost to them.
        may_be_stored = error.may_be_stored if isinstance(error, BrokerUnavailable) else not _is_refusal(error)
        with contextlib.suppress(redis.RedisError):
            if may_be_stored:
                self._broker.client.set(name, mine._replace(at_ms=0).packed(), ex=KEPT_SECONDS)
            else:
                self._broker.client.delete(name)

    def _name(self, key: IdempotencyKey) -> str:
        return f"{{{self._broker.namespace}:api}}:idempotency:{hashlib.sha256(key.scoped.encode()).hexdigest()}"

    def _ask(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as error:
            raise self._broker.unavailable(error) from error


def _is_refusal(error: Exception) -> bool:
    """Whether an error is an answer, given before anything was stored."""
    return isinstance(error, CallboardError) and error.status < 500


def _hash_of(send: Send) -> str:
    # Of what is asked for, not of its bytes: a client may write the same JSON in another order.
    message = send.message
    asked = [message.actor_name, message.queue_name, message.args, message.kwargs, *send.asked]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
