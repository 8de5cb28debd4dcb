"""Counting what clients ask of a Redis server: the commands that arrive, not those inside of scripts."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.servers import RedisServer


class Commands(Counter[str]):
    """Commands by name."""

    @property
    def all(self) -> int:
        return sum(self.values())


@contextlib.contextmanager
def client_commands(server: RedisServer) -> Iterator[Commands]:
    """Count by MONITOR while the block runs. Read the counts after it."""
    commands = Commands()
    with server.client() as client, socket.create_connection(("127.0.0.1", server.port)) as monitor:
        client.ping()  # before: what a new connection says for itself is not counted
        monitor.sendall(b"MONITOR\r\n")
        lines = monitor.makefile("rb")
        assert lines.readline() == b"+OK\r\n"
        reader = threading.Thread(target=_count, args=(lines, commands))
        reader.start()
        yield commands
        # What was sent before this has been counted when its line comes.
        client.echo("counted")
        reader.join(20)


def _count(lines: Any, commands: Commands) -> None:
    for line in lines:
        # +1764555683.123456 [0 127.0.0.1:40000] "EVALSHA" "..."; a command of a script has `lua` for an address
        _, _, address, name, *_rest = line.split(b" ", 4)
        if name == b'"ECHO"' or name.startswith(b'"ECHO"'):
            return
        if address != b"lua]":
            commands[name.decode().strip('"\r\n').upper()] += 1


def total_calls(server: RedisServer, command: str) -> tuple[int, int]:
    """How often a command was carried out since the server started, inside scripts too, and its microseconds."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0, "usec": 0})
    return stats["calls"], stats["usec"]


def commands_of(server: RedisServer) -> int:
    """How many commands were carried out since the server started, those of scripts too: but for those that look."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    looking = ("cmdstat_info", "cmdstat_client", "cmdstat_hello")
    return sum(stat["calls"] for name, stat in stats.items() if not name.startswith(looking))
