"""The worker's side of a process in which suspects run: one at a time, so that its death names the culprit.

To start one takes about a second, since it imports the actors anew. When a worker dies with many short jobs in its
hands they are all suspects, so a process goes on to the next one. Who has one delivery left gets a process that has run
nothing before: what an earlier job has broken is not held against a later one.
"""

import os
import select
import subprocess
import sys
import threading

CHILD = "service.middleware.quarantine_child"
#: How often a wait comes back to Python, where what a time limit raises in this thread can arrive.
INTERRUPTIBLE_SECONDS = 0.2
BEGUN = b"+"
LENGTH_BYTES = 8

_of_thread = threading.local()


class ProcessDied(Exception):
    """The process in which the job ran alone has died."""


def run_alone(request: bytes, *, fresh: bool) -> bytes:
    """Run one request of quarantine_child and return its answer. Raises ProcessDied.

    Whatever else is raised in this thread, such as by a time limit, ends the process and the job with it.
    """
    while True:
        process = _process_for_this_thread(fresh)
        try:
            answer = process.run(request)
        except BaseException:
            process.end()
            raise
        if answer is not None:
            return answer
        process.end()  # its idle time was over before it saw the request


def _process_for_this_thread(fresh: bool) -> "_Process":
    process: _Process | None = getattr(_of_thread, "process", None)
    if process is None or fresh or not process.is_alive:
        if process is not None:
            process.end()
        process = _of_thread.process = _Process()
    return process


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-m", CHILD]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 - our own
        assert self._child.stdin
        assert self._child.stdout
        self._requests = self._child.stdin
        self._answers = self._child.stdout.fileno()

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def run(self, request: bytes) -> bytes | None:
        """Return the answer, or None where the process ended by itself before it began. Raises ProcessDied."""
        try:
            self._send(len(request).to_bytes(LENGTH_BYTES, "big") + request)
            begun = self._receive(1)
        except (BrokenPipeError, EOFError):
            if self._child.wait() == 0:
                return None
            raise ProcessDied(f"The process of the job ended with {self._how()}") from None
        assert begun == BEGUN
        try:
            return self._receive(int.from_bytes(self._receive(LENGTH_BYTES), "big"))
        except EOFError:
            self._child.wait()
            raise ProcessDied(f"The process of the job ended with {self._how()}") from None

    def end(self) -> None:
        """End the process, and whatever runs in it."""
        self._child.kill()
        self._child.wait()
        self._requests.close()
        if self._child.stdout:
            self._child.stdout.close()

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if select.select([], [self._requests], [], INTERRUPTIBLE_SECONDS)[1]:
                rest = rest[os.write(self._requests.fileno(), rest[: select.PIPE_BUF]) :]

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            if select.select([self._answers], [], [], INTERRUPTIBLE_SECONDS)[0]:
                part = os.read(self._answers, count - len(received))
                if not part:
                    raise EOFError
                received += part
        return bytes(received)

    def _how(self) -> str:
        code = self._child.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"
