"""Sends rows: once more where the connection breaks, and without end where what follows a job depends on it."""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from threading import local
from time import monotonic, sleep
from typing import TYPE_CHECKING

import redis
from dramatiq.middleware import Interrupt

from service.broker.connections import may_have_been_carried_out
from service.broker.unique_keys import Met
from service.broker.wire import Row
from service.errors import BrokerUnavailable

if TYPE_CHECKING:
    from service.broker.process import Process

#: A send whose connection breaks sooner is repeated: both together stay within the time-out, but for this.
REPEAT_WITHIN_SECONDS = 0.25
INSIST_SECONDS = 0.5

logger = logging.getLogger(__name__)


class _Insists(local):
    now = False


class Sender:
    """What a process does of its own for a send to arrive. Thread-safe."""

    def __init__(self, broker: "Process") -> None:
        self._broker = broker
        self._insists = _Insists()

    def send_rows(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int] | None = None, once_within_seconds: int = 0
    ) -> bool | Met:
        """Send rows in one call, and once more where the connection broke in it: Redis knows a repetition by `send`.

        Returns whether they were stored, or the job that the only one has met. Raises BrokerUnavailable.
        """
        send = send or self._broker.producer.next_send()
        while self._insists.now:
            try:
                return self._send_rows(queue, rows, send, once_within_seconds)
            except BrokerUnavailable as error:
                logger.warning("What follows a job can't be sent now, and is kept: %s", error)
                with suppress(Interrupt):  # the job has ended: its limits are over
                    sleep(INSIST_SECONDS)
        return self._send_rows(queue, rows, send, once_within_seconds)

    @property
    def is_insisting(self) -> bool:
        """Whether this thread is within `insisting`."""
        return self._insists.now

    @contextmanager
    def insisting(self) -> Generator[None]:
        """Within it, this thread's sends wait for as long as Redis is out of reach, and are stored once."""
        self._insists.now = True
        try:
            yield
        finally:
            self._insists.now = False

    def _send_rows(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int], once_within_seconds: int
    ) -> bool | Met:
        wire, unavailable = self._broker.wire, self._broker.unavailable
        started = monotonic()
        try:
            return wire.enqueue(queue, rows, send, once_within_seconds)
        except redis.ConnectionError as error:
            if not may_have_been_carried_out(error) or monotonic() - started > REPEAT_WITHIN_SECONDS:
                raise unavailable(error) from error
        except redis.RedisError as error:
            raise unavailable(error) from error
        try:
            return wire.enqueue(queue, rows, send, once_within_seconds)
        except redis.RedisError as error:
            raise unavailable(error, may_be_stored=True) from error
