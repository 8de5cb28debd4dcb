"""Calls one script with as little work as can be: the hot path of every send, fetch and settlement.

redis-py's general way (retry wrapper, pool with a look at the socket, observers, encoder) costs several times what the
script does. Its connections, parser and errors are used as they are; a command is packed by hand, and a connection is
kept between calls. One that was idle is looked at before it is used, since the server may have closed it meanwhile.
"""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import sha1
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError

IDLE_SECONDS = 1.0


class Caller:
    """Calls scripts on connections of a client's pool. Thread-safe, and safe to use after a fork."""

    def __init__(self, client: Any, scripts: dict[str, str]) -> None:
        self._pool = client.connection_pool
        self._scripts = {name: source.encode() for name, source in scripts.items()}
        self._heads = {
            name: b"$7\r\nEVALSHA\r\n$40\r\n%s\r\n" % sha1(source, usedforsecurity=False).hexdigest().encode()
            for name, source in self._scripts.items()
        }
        self._free: deque[tuple[Any, float]] = deque()
        self._pid = os.getpid()

    def call(self, name: str, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        """Call a script and return its reply, undecoded. Raises redis.RedisError."""
        packed = _pack(self._heads[name], keys, args)
        try:
            return self._exchange(packed)
        except NoScriptError:
            # A server that was restarted, or told to forget. What failed so has done nothing.
            self._exchange(_pack(b"$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n", None, [self._scripts[name]]))
            return self._exchange(packed)

    def close(self) -> None:
        """Give the connections back."""
        while self._free:
            self._pool.release(self._free.pop()[0])

    def _exchange(self, packed: bytes) -> Any:
        connection = None
        try:
            connection = self._take()
            connection.send_packed_command([packed], check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except BaseException as error:
            if isinstance(error, redis.ResponseError) and "READONLY" not in str(error):
                self._free.append((connection, monotonic()))
            elif connection is not None:
                # Another server may be the primary by now. And what a time limit raises in this thread comes here too:
                # a reply that is still to come must not meet the next call.
                connection.disconnect()
                self._pool.release(connection)
            raise
        self._free.append((connection, monotonic()))
        return reply

    def _take(self) -> Any:
        if self._pid != os.getpid():
            self._free, self._pid = deque(), os.getpid()  # a parent's sockets are not ours
        try:
            connection, used_at = self._free.pop()
        except IndexError:
            return self._pool.get_connection()
        if monotonic() - used_at > IDLE_SECONDS:
            try:
                stale = connection.can_read()
            except (redis.RedisError, OSError):
                stale = True
            if stale:
                connection.disconnect()
        return connection


def _pack(head: bytes, keys: Sequence[str] | None, args: Iterable[str | bytes | int]) -> bytes:
    parts = [head]
    count = 2
    if keys is not None:
        args = [len(keys), *keys, *args]
    for arg in args:
        data = arg if isinstance(arg, bytes) else (arg if isinstance(arg, str) else str(arg)).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        count += 1
    return b"*%d\r\n%b" % (count, b"".join(parts))
