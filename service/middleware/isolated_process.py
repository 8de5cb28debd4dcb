"""The worker's side of the processes that run one job at a time: a limit can end it, and a death names the culprit.

To start one takes about a second, since it imports the actors anew, and as much memory as a worker. So a process goes
on to the next job, of whichever thread and actor. A suspect that has one delivery left gets a process that has run
nothing before: what an earlier job has broken is not held against it.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock
from typing import NamedTuple

from service.broker.delivery import Lease
from service.broker.outcome import Failure

CHILD = "service.middleware.isolated_child"
GUARD = Path(__file__).with_name("isolated_guard.py")
#: How often a wait looks whether the job is to end.
INTERRUPTIBLE_SECONDS = 0.1
#: Processes that start at the same time: each keeps a core busy.
MOST_STARTING = os.cpu_count() or 1

UP = b"."
READY = b"?"
GO = b"!"
LENGTH_BYTES = 8


class Request(NamedTuple):
    """What a process is to run. `module` is of the actor's function, `path` where the worker finds modules."""

    module: str
    path: list[str]
    message: bytes
    lease: Lease
    inherited: dict[str, str]
    soft_limit_seconds: float | None
    memory_limit_mb: int | None


class ProcessDied(Exception):
    """The process in which the job ran alone has died."""


class ProcessNotStarted(Exception):
    """A process for a job has died before the job began in it: the job is not to blame."""


class RemoteError(Exception):
    """Stands for an error of the child that can't be sent as it is."""

    def __init__(self, failure: Failure, *, is_final: bool) -> None:
        super().__init__(f"{failure.type}: {failure.message}")
        self.failure = failure
        #: Whether no repetition can mend it, by the actor's own policy.
        self.is_final = is_final


class Interruption:
    """What another thread asks for and this one raises, where it breaks nothing: between two waits for the child."""

    def __init__(self) -> None:
        self._asked: type[BaseException] | None = None

    def ask(self, exception: type[BaseException]) -> None:
        """Have an exception raised soon."""
        self._asked = exception

    def check(self) -> None:
        """Raise what was asked for."""
        if self._asked:
            raise self._asked


def run_alone(request: bytes, on_ready: Callable[[], None], interruption: Interruption, *, fresh: bool) -> bytes:
    """Run one pickled Request in a child and return its answer. `on_ready` is called just before the job begins.

    Raises ProcessDied, ProcessNotStarted, and what the interruption asks for. Each of them ends the process, and the
    job with it, whatever that does.
    """
    while True:
        process = _processes.take(interruption, fresh=fresh)
        try:
            answer = process.run(request, on_ready, interruption)
        except BaseException:
            process.end()
            raise
        if answer is not None:
            _processes.give_back(process)
            return answer
        process.end()  # its idle time was over before it saw the request


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-m", CHILD]
        # A session of its own: a signal to the worker's group is the worker's business.
        self._child = subprocess.Popen(  # noqa: S603 - our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        _guard.add(self._child.pid)
        assert self._child.stdin
        assert self._child.stdout
        self._requests = self._child.stdin
        self._answers = self._child.stdout

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def wait_until_up(self, interruption: Interruption) -> None:
        """Wait for its imports. Raises ProcessNotStarted."""
        try:
            self._receive(len(UP), interruption)
        except EOFError:
            self._child.wait()
            raise ProcessNotStarted(f"A process for a job ended with {self._how()} at its start") from None

    def run(self, request: bytes, on_ready: Callable[[], None], interruption: Interruption) -> bytes | None:
        """Return the answer, or None where the process ended by itself before it saw the request."""
        try:
            self._send(len(request).to_bytes(LENGTH_BYTES, "big") + request, interruption)
            self._receive(len(READY), interruption)
        except (BrokenPipeError, EOFError):
            if self._child.wait() == 0:
                return None
            raise ProcessNotStarted(f"The process of the job ended with {self._how()} before it began") from None
        on_ready()
        try:
            self._send(GO, interruption)
            length = int.from_bytes(self._receive(LENGTH_BYTES, interruption), "big")
            return self._receive(length, interruption)
        except (BrokenPipeError, EOFError):
            self._child.wait()
            raise ProcessDied(f"The process of the job ended with {self._how()}") from None

    def end(self) -> None:
        """End the process, with whatever runs in it and has been started by it."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        _guard.remove(self._child.pid)
        self._requests.close()
        self._answers.close()

    def _send(self, data: bytes, interruption: Interruption) -> None:
        rest = memoryview(data)
        while rest:
            if select.select([], [self._requests], [], INTERRUPTIBLE_SECONDS)[1]:
                rest = rest[os.write(self._requests.fileno(), rest[: select.PIPE_BUF]) :]
            else:
                interruption.check()

    def _receive(self, count: int, interruption: Interruption) -> bytes:
        received = bytearray()
        while len(received) < count:
            if not select.select([self._answers], [], [], INTERRUPTIBLE_SECONDS)[0]:
                # A process that the job has forked may hold the pipe open.
                if not self.is_alive and not select.select([self._answers], [], [], 0)[0]:
                    raise EOFError
                interruption.check()
                continue
            part = os.read(self._answers.fileno(), count - len(received))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _how(self) -> str:
        code = self._child.returncode
        if code == -signal.SIGKILL:
            return "signal 9 (SIGKILL, as the kernel sends it when memory runs out)"
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class _Guard:
    """The worker's side of isolated_guard: tells it which processes there are. Thread-safe."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._program: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def add(self, group: int) -> None:
        """Have a process group ended with this process."""
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forget a process group that has ended."""
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._program is None or self._program.poll() is not None:
            command = [sys.executable, "-I", "-S", str(GUARD)]
            self._program = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
            line = "".join(f"+{group}\n" for group in self._groups)
        assert self._program.stdin
        with suppress(BrokenPipeError):  # the next line starts another
            os.write(self._program.stdin.fileno(), line.encode())


_guard = _Guard()


class _Processes:
    """The processes that have nothing to do, and the right to start one. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._starting = 0
        self._condition = Condition()

    def take(self, interruption: Interruption, *, fresh: bool) -> _Process:
        """Return an idle process, or a new one, for which there may be a line. Raises ProcessNotStarted."""
        with self._condition:
            while True:
                if not fresh and (process := self._alive()):
                    return process
                if self._starting < MOST_STARTING:
                    break
                self._condition.wait(INTERRUPTIBLE_SECONDS)
                interruption.check()
            self._starting += 1
        process = None
        try:
            process = _Process()
            process.wait_until_up(interruption)
            return process
        except BaseException:
            if process:
                process.end()
            raise
        finally:
            with self._condition:
                self._starting -= 1
                self._condition.notify_all()

    def give_back(self, process: _Process) -> None:
        """Let another job have it."""
        with self._condition:
            self._idle.append(process)
            self._condition.notify()

    def _alive(self) -> _Process | None:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.end()
        return None


_processes = _Processes()
