"""One connection of the hot path: commands as bytes, replies read with as little work as can be.

redis-py makes the connection (address, TLS, authentication, database) and names the errors; its way to read a reply
costs about as much as the server's work on a send.
"""

from typing import Any

import redis

from service.broker.connections import NotCarriedOut, is_of_a_replica

READ_BYTES = 65536
CRLF = b"\r\n"


def is_last_word(error: object) -> bool:
    """Whether the server closes the connection with this error of a command."""
    return isinstance(error, redis.ResponseError) and str(error).startswith("Protocol error")


class Line:
    """A connection from the pool, for one caller at a time. After all but the error of a reply it is of no more use."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._socket = connection._sock
        self._parse_error = connection._parser.parse_error
        self._data = b""
        self._at = 0

    def send(self, command: bytes) -> None:
        """Send a command. Raises redis.ConnectionError and redis.TimeoutError."""
        try:
            self._socket.sendall(command)
        except TimeoutError:
            raise redis.TimeoutError("Timeout writing to socket") from None
        except OSError as error:
            self._raise_refusal()
            raise redis.ConnectionError(f"Error while writing to socket: {error}") from error

    def _raise_refusal(self) -> None:
        """Raise what the server said before it closed, of a command that is too long: no repetition helps."""
        try:
            self.receive()
        except redis.ResponseError as error:
            if is_last_word(error):
                raise
        except redis.RedisError:
            pass

    def receive(self) -> Any:
        """Return the next reply, undecoded. Raises redis.RedisError: NotCarriedOut where the server is a replica."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self.receive() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        if kind == b"_":
            return None
        if kind == b">":  # what the server says unasked
            for _ in range(int(rest)):
                self.receive()
            return self.receive()
        if kind == b"-":
            raise self._error(rest.decode(errors="replace"))
        raise redis.InvalidResponse(f"Unexpected reply: {line[:80]!r}")

    def is_stale(self) -> bool:
        """Whether the server has closed the connection, or has said what nobody asked for."""
        try:
            return self._at < len(self._data) or self.connection.can_read()
        except (redis.RedisError, OSError):
            return True

    def _error(self, text: str) -> Exception:
        error = self._parse_error(text)
        return NotCarriedOut(str(error)) if is_of_a_replica(error) else error

    def _line(self) -> bytes:
        while (end := self._data.find(CRLF, self._at)) < 0:
            self._data, self._at = self._data[self._at :] + self._read(), 0
        line = self._data[self._at : end]
        self._at = end + 2
        return line

    def _bytes(self, count: int) -> bytes:
        missing = self._at + count + 2 - len(self._data)
        if missing > 0:
            parts = [self._data[self._at :]]
            while missing > 0:
                parts.append(self._read())
                missing -= len(parts[-1])
            self._data, self._at = b"".join(parts), 0
        data = self._data[self._at : self._at + count]
        self._at += count + 2
        return data

    def _read(self) -> bytes:
        try:
            data: bytes = self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise redis.TimeoutError("Timeout reading from socket") from None
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from socket: {error}") from error
        if not data:
            raise redis.ConnectionError("Connection closed by server.")
        return data
