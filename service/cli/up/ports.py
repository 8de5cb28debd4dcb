"""Free ports. A port is kept by a socket from its choice on, so that nothing else can take it."""

import socket
import sys

from service.cli.failure import CommandFailed

SEARCHED = 200


def listen_near(host: str, wished: int) -> socket.socket:
    """Return a socket that listens on the wished port, or on the next free one."""
    for port in range(wished, min(wished + SEARCHED, 65536)):
        if listener := _listen(host, port):
            return listener
    raise CommandFailed(f"No port from {wished} to {wished + SEARCHED - 1} can be opened on {host}.")


def listen_on(wished: int | None) -> socket.socket:
    """Return a socket that listens on the wished port of this machine, or on any free one."""
    listener = _listen("127.0.0.1", wished) if wished else None
    return listener or _listen_anywhere()


def make_way(listener: socket.socket) -> socket.socket | None:
    """Let a server that brings its own socket listen on this port; return what keeps others off it, also later.

    On Linux a socket that has the port without listening lets in nobody but who asks for this very port. Elsewhere it
    would not let in the server either, and the port is open to all until the server has it.
    """
    port = port_of(listener)
    listener.close()
    return _bind("127.0.0.1", port) if sys.platform == "linux" else None


def port_of(listener: socket.socket) -> int:
    """Return the port that a socket listens on."""
    return int(listener.getsockname()[1])


def _listen_anywhere() -> socket.socket:
    listener = _listen("127.0.0.1", 0)
    if listener is None:
        raise CommandFailed("No port is free on 127.0.0.1.")
    return listener


def _listen(host: str, port: int) -> socket.socket | None:
    listener = _bind(host, port)
    if listener is None:
        return None
    try:
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        return None
    return listener


def _bind(host: str, port: int) -> socket.socket | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CommandFailed(f"CALLBOARD_API_HOST={host!r} is not an address of this machine: {error}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        # Connections of the previous run may still be winding down; they do not take the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        return None
    return bound
