"""A proxy in front of Redis that does what networks and servers do: it cuts, loses a reply, answers with an error."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha1
from math import inf
from threading import Lock, Thread
from typing import BinaryIO

from service.broker.scripts import NAMES, source
from tests.servers import eventually, free_port

Command = list[bytes]

_SCRIPT_OF = {sha1(source(name).encode()).hexdigest().encode(): name for name in NAMES}
_SCRIPT_OF |= {source(name).encode(): name for name in NAMES}


#: The reply to a fetch that found no job ends with the empty text in place of them.
_NOTHING = b"$0\r\n\r\n"
_NOT_KNOWN = b"-NOSCRIPT"


def script_of(command: Command) -> str | None:
    """The script of ours that a command calls, by hash or with its source."""
    return _SCRIPT_OF.get(command[1]) if command[0].upper() in (b"EVALSHA", b"EVAL") else None


def calls(script: str, queue: str = "default") -> Callable[[Command], bool]:
    """Match the calls of one script for one queue: a worker asks for all queues, whatever a test is about."""
    return lambda command: script_of(command) == script and b":%b}" % queue.encode() in command[3]


@dataclass
class Rule:
    """What is done to commands that match. `met` counts how often it was."""

    matches: Callable[[Command], bool]
    #: The answer in place of the server, which hears nothing of it; None to lose the server's own.
    error: bytes | None
    times: float
    also_empty: bool = True
    met: int = 0

    def applies_to(self, command: Command) -> bool:
        return self.met < self.times and self.matches(command)

    def loses(self, reply: bytes) -> bool:
        return self.also_empty or not (reply.endswith(_NOTHING) or reply.startswith(_NOT_KNOWN))


class Proxy:
    """Passes connections on to a server of this machine, command by command.

    It takes a reply for the answer to the newest command: our scripts are called one at a time on a connection.
    """

    def __init__(self, target: int) -> None:
        #: The port that new connections are passed on to; those that are open stay where they are.
        self.target = target
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._lock = Lock()
        self._listener: socket.socket | None = None

    def mend(self) -> None:
        """Take connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Close every connection, and refuse new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            links = list(self._links)
        if listener:
            _close(listener)
        for link in links:
            link.close()

    def lose_replies(self, matches: Callable[[Command], bool], times: float = 1, *, also_empty: bool = False) -> Rule:
        """Let the server do the work, then close the connection in place of its reply.

        Without `also_empty`, the replies to fetches that found no job are passed on.
        """
        return self._add(Rule(matches, None, times, also_empty))

    @contextlib.contextmanager
    def answering(self, error: str, matches: Callable[[Command], bool]) -> Iterator[Rule]:
        """Answer with an error in place of the server, which hears nothing of it."""
        rule = self._add(Rule(matches, error.encode(), inf))
        try:
            yield rule
        finally:
            self._rules.remove(rule)

    def rule_for(self, command: Command) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.applies_to(command):
                    return rule
        return None

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
                is_cut = self._listener is not listener
            if is_cut:
                link.close()
            else:
                link.start()

    def forget(self, link: "_Link") -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._losing: Rule | None = None

    def start(self) -> None:
        for each in (self._pass_commands, self._pass_replies):
            Thread(target=self._until_closed, args=(each,), daemon=True).start()

    def close(self) -> None:
        _close(self._client)
        _close(self._server)
        self._proxy.forget(self)

    def _until_closed(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            work()
        self.close()

    def _pass_commands(self) -> None:
        with self._client.makefile("rb") as stream:
            while command := _read_command(stream):
                rule = self._proxy.rule_for(command)
                if rule and rule.error:
                    rule.met += 1
                    self._client.sendall(b"-%b\r\n" % rule.error)
                    continue
                self._losing = rule
                self._server.sendall(_packed(command))

    def _pass_replies(self) -> None:
        while reply := self._server.recv(65536):
            if self._losing and self._losing.loses(reply):
                self._losing.met += 1
                return
            self._client.sendall(reply)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
    end.close()


def _read_command(stream: BinaryIO) -> Command | None:
    head = stream.readline()
    if not head.startswith(b"*"):
        return None
    command: Command = []
    for _ in range(int(head[1:])):
        length = int(stream.readline()[1:])
        command.append(stream.read(length))
        stream.read(2)
    return command


def _packed(command: Command) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)


@contextlib.contextmanager
def proxy_to(target: int) -> Iterator[Proxy]:
    """Run a proxy to a port of this machine."""
    proxy = Proxy(target)
    proxy.mend()
    yield proxy
    proxy.cut()


def happened(rule: Rule, times: int = 1) -> None:
    """Wait until a rule was applied."""
    eventually(lambda: rule.met >= times)
