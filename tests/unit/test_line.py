"""Replies are read whatever the pieces are in which they arrive."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from service.broker.connections import NotCarriedOut
from service.broker.line import Line

replies = st.recursive(
    st.integers() | st.binary(max_size=80) | st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)


def packed(reply: Any) -> bytes:
    """A reply as a server of RESP2 writes it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(packed, reply))


class Pieces:
    """A socket on which bytes arrive in pieces of given lengths, the last length again and again."""

    def __init__(self, data: bytes, lengths: list[int]) -> None:
        self.data = data
        self.lengths = lengths

    def recv(self, most: int) -> bytes:
        length = self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]
        piece, self.data = self.data[:length], self.data[length:]
        return piece


def line_on(sock: Any) -> Line:
    parser = redis.connection.DefaultParser(socket_read_size=1)
    return Line(SimpleNamespace(_sock=sock, _parser=parser))


@given(st.lists(replies, min_size=1, max_size=4), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_replies_are_read_from_any_pieces(sent: list[Any], lengths: list[int]) -> None:
    line = line_on(Pieces(b"".join(map(packed, sent)), lengths))
    assert [line.receive() for _ in sent] == sent


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.2)
    with ours, theirs:
        yield line_on(ours), theirs


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"NOSCRIPT No matching script", redis.exceptions.NoScriptError),
        (b"OOM command not allowed", redis.exceptions.OutOfMemoryError),
        (b"LOADING Redis is loading", redis.exceptions.BusyLoadingError),
        (b"READONLY You can't write against a replica", NotCarriedOut),
        (b"ERR READONLY You can't write against a replica", NotCarriedOut),
        (b"ERR whatever", redis.ResponseError),
    ],
)
def test_errors_are_redis_py_s_own_and_the_next_reply_is_read(
    ends: tuple[Line, socket.socket], text: bytes, kind: type[Exception]
) -> None:
    line, server = ends
    server.sendall(b"-" + text + b"\r\n:7\r\n")
    with pytest.raises(kind):
        line.receive()
    assert line.receive() == 7


def test_what_the_server_says_unasked_is_passed_over(ends: tuple[Line, socket.socket]) -> None:
    line, server = ends
    server.sendall(b">2\r\n+moving\r\n:1\r\n_\r\n+OK\r\n")
    assert line.receive() is None
    assert line.receive() == b"OK"


def test_silence_and_a_closed_connection_have_their_errors(ends: tuple[Line, socket.socket]) -> None:
    line, server = ends
    server.sendall(b"$10\r\nabc")
    with pytest.raises(redis.TimeoutError):
        line.receive()
    server.close()
    with pytest.raises(redis.ConnectionError):
        line.receive()
