"""Calls scripts with as little work as can be: the hot path of every send, fetch and settlement.

redis-py's general way (retry wrapper, pool with a look at the socket, observers, encoder) costs several times what a
script does. Its connections and errors are used as they are; a command is packed by hand, and a connection is kept
between calls. One that was idle is looked at before it is used, since the server may have closed it meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha1
from time import monotonic
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError

from service.broker.connections import NotCarriedOut
from service.broker.line import Line, is_last_word

IDLE_SECONDS = 1.0
#: Calls of `call_each` that are sent before the first of them is answered.
PIPELINED = 2

Argument = str | bytes | int


class Packed(NamedTuple):
    """Arguments as they go over the wire, and their number."""

    data: bytes
    number: int


class Call(NamedTuple):
    """One call of a script: arguments that are the same each time, the number of keys first, and the others."""

    script: str
    constant: Packed
    arguments: list[Argument]


def pack(arguments: Iterable[Argument]) -> Packed:
    """Pack the arguments of a command."""
    parts: list[bytes] = []
    for argument in arguments:
        data = (
            argument if isinstance(argument, bytes) else (argument if type(argument) is str else str(argument)).encode()
        )
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return Packed(b"".join(parts), len(parts))


class Caller:
    """Calls scripts on connections of a client's pool. Thread-safe. A child after a fork makes its own."""

    def __init__(self, client: Any, scripts: dict[str, str]) -> None:
        self._pool = client.connection_pool
        sources = {name: source.encode() for name, source in scripts.items()}
        self._heads = {
            name: pack(["EVALSHA", sha1(source, usedforsecurity=False).hexdigest()]).data
            for name, source in sources.items()
        }
        self._whole = {name: pack(["EVAL", source]).data for name, source in sources.items()}
        self._free: deque[tuple[Line, float]] = deque()

    def call(self, call: Call) -> Any:
        """Call a script and return its reply, undecoded. Raises redis.RedisError, NotCarriedOut where that is sure."""
        command = self._command(call, self._heads)
        try:
            return self._exchange(command)
        except NoScriptError:
            # A server that was restarted, or told to forget. What failed so has done nothing. The source goes with the
            # call itself: the server might forget again between a LOAD and the call.
            return self._exchange(self._command(call, self._whole))

    def call_each(self, calls: Iterable[Call]) -> Iterator[Any]:
        """Call scripts in order, each sent while the server does the one before. Gives replies and redis.RedisErrors.

        Where the connection fails, it is open for the call whose error is given and for the next one whether the server
        has carried them out.
        """
        line: Line | None = None
        unanswered = 0
        try:
            for call in calls:
                try:
                    line = line or self._take()
                    line.send(self._command(call, self._heads))
                except redis.RedisError as error:
                    answers: list[Any] = [error] * (unanswered + 1)
                else:
                    unanswered += 1
                    answers = [] if unanswered < PIPELINED else self._answers(line, 1)
                    if answers and isinstance(answers[0], redis.RedisError):
                        # Who repeats this call does so before the next one is sent: the order holds.
                        answers += self._answers(line, unanswered - 1, answers[0])
                if answers and _is_broken(answers[-1]):
                    self._put_back(line, broken=True)
                    line, unanswered = None, len(answers)
                unanswered -= len(answers)
                yield from answers
            rest = self._answers(line, unanswered) if line else []
            unanswered = 0
            yield from rest
        finally:
            self._put_back(line, broken=unanswered > 0)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with suppress(IndexError):
            while True:
                self._discard(self._free.pop()[0])

    def _command(self, call: Call, heads: dict[str, bytes]) -> bytes:
        own = pack(call.arguments)
        count = 2 + call.constant.number + own.number
        return b"*%d\r\n%b%b%b" % (count, heads[call.script], call.constant.data, own.data)

    def _exchange(self, command: bytes) -> Any:
        line = None
        broken = True
        try:
            line = self._take()
            line.send(command)
            reply = line.receive()
            broken = False
            return reply
        except redis.RedisError as error:
            broken = _is_broken(error)
            raise
        finally:
            # Also what a time limit raises in this thread: a reply that is still to come must not meet the next call.
            self._put_back(line, broken=broken)

    def _answers(self, line: Line, count: int, last: Any = None) -> list[Any]:
        answers: list[Any] = []
        for _ in range(count):
            if not _is_broken(last):
                try:
                    last = line.receive()
                except redis.RedisError as error:
                    last = error
            answers.append(last)
        return answers

    def _take(self) -> Line:
        try:
            line, used_at = self._free.pop()
        except IndexError:
            return self._connect()
        if monotonic() - used_at > IDLE_SECONDS and line.is_stale():
            self._discard(line)
            return self._connect()
        return line

    def _connect(self) -> Line:
        try:
            return Line(self._pool.get_connection())
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise NotCarriedOut(str(error)) from error

    def _put_back(self, line: Line | None, *, broken: bool) -> None:
        if line is None:
            return
        if broken:
            self._discard(line)
            self.close()  # what broke this connection may have broken those that are idle: they would fail in turn
        else:
            self._free.append((line, monotonic()))

    def _discard(self, line: Line) -> None:
        line.connection.disconnect()
        self._pool.release(line.connection)


def _is_broken(answer: object) -> bool:
    return isinstance(answer, redis.RedisError) and (
        not isinstance(answer, redis.ResponseError) or is_last_word(answer)
    )
