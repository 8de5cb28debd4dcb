"""Sends of many requests in few calls: while Redis stores one group of messages, the next one gathers.

A thread and a round trip for each request would cost several times what storing it does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from dramatiq.message import Message

from service.api.lines import LINE_SECONDS
from service.broker.unique_keys import Met
from service.errors import BrokerUnavailable

#: Groups that are under way at once: a queue whose shard hangs does not hold up the others'.
GROUPS = 4
MOST_IN_GROUP = 500
LONGEST_WAIT = 5000


class Send(NamedTuple):
    """A message that is to be sent after a delay, or at once. `asked` is what was asked for beside the message."""

    message: Message[Any]
    delay_ms: int | None = None
    asked: tuple[Any, ...] = ()


class _Waiting(NamedTuple):
    send: Send
    outcome: "asyncio.Future[Met | None]"


class GroupSends:
    """The sends of one application. `send_group` returns for each send what went wrong, or the job that it has met, or
    None where it is stored.
    """

    def __init__(self, send_group: Callable[[Sequence[Send]], Sequence[Exception | Met | None]]) -> None:
        self._send_group = send_group
        self._waiting: deque[_Waiting] = deque()
        self._threads = ThreadPoolExecutor(GROUPS, thread_name_prefix="sends")
        self._under_way: set[asyncio.Task[None]] = set()

    async def send(self, send: Send) -> Met | None:
        """Store one message, and return the job that it has met, if any.

        Raises what went wrong, BrokerUnavailable where it waited for too long among others.
        """
        if len(self._waiting) >= LONGEST_WAIT:
            raise BrokerUnavailable(f"{LONGEST_WAIT} requests are waiting already", may_be_stored=False)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(send, loop.create_future())
        self._waiting.append(waiting)
        if len(self._under_way) < GROUPS:
            self._start(loop)
        timer = loop.call_later(LINE_SECONDS, self._give_up, waiting)
        try:
            return await waiting.outcome
        finally:
            timer.cancel()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._send_all())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            count = min(len(self._waiting), MOST_IN_GROUP)
            group = [self._waiting.popleft() for _ in range(count)]
            try:
                errors = await loop.run_in_executor(self._threads, self._send_group, [one.send for one in group])
            except Exception as error:  # noqa: BLE001 - each of them hears of it
                errors = [error] * count
            for one, error in zip(group, errors, strict=True):
                if one.outcome.done():
                    continue  # its client has gone
                if isinstance(error, Exception):
                    one.outcome.set_exception(error)
                else:
                    one.outcome.set_result(error)

    def _give_up(self, waiting: _Waiting) -> None:
        # What a thread has taken is not given up: it may be stored, and that thread will know.
        if waiting in self._waiting and not waiting.outcome.done():
            self._waiting.remove(waiting)
            reason = f"The requests before this one took more than {LINE_SECONDS:g} s"
            waiting.outcome.set_exception(BrokerUnavailable(reason, may_be_stored=False))
