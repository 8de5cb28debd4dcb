"""What a job sends and what goes out only when the job has succeeded, in the same step.

It is kept beside the running job; the settlement writes it to the outgoing list of the job's queue, and the relay takes
it from there to the queue that it is for.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import NamedTuple

from service.errors import TooManyFollowUps

MOST = 1000
MOST_BYTES = 4 * 1024 * 1024


class FollowUp(NamedTuple):
    """A message on its way: the queue that it is for, its entry there, and its row as enqueue.lua takes it."""

    queue: str
    entry: str
    row: bytes

    def packed(self, nonce: str) -> bytes:
        """Return it as the outgoing list holds it. `nonce` is its own: by it a repeated relay is known."""
        return f"{nonce} {self.queue}\n".encode() + self.row

    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.row)

    @classmethod
    def unpack(cls, element: bytes) -> "tuple[str, FollowUp]":
        """Return the nonce and the message of an element of the list. Raises ValueError."""
        head, line_break, row = element.partition(b"\n")
        nonce, queue = head.decode().split(" ")
        entry = row.partition(b" ")[0].decode()
        if not (line_break and entry):
            raise ValueError("There is no message in it")
        return nonce, cls(queue, entry, row)


#: One for all: each job has a FollowUps, and few add to it.
_adding = Lock()


class FollowUps:
    """The follow-ups of one run. Thread-safe: what the run has begun may outlive it."""

    __slots__ = ("_bytes", "_is_closed", "all")

    def __init__(self) -> None:
        self.all: list[FollowUp] = []
        self._bytes = 0
        self._is_closed = False

    def add(self, follow_up: FollowUp) -> bool:
        """Keep one until the job ends. Returns False where it has succeeded before. Raises TooManyFollowUps."""
        with _adding:
            if self._is_closed:
                return False
            self._bytes += follow_up.size()
            if len(self.all) >= MOST or self._bytes > MOST_BYTES:
                raise TooManyFollowUps(
                    f"A job can keep up to {MOST} jobs and {MOST_BYTES} bytes until it succeeds: send them at once, "
                    "with `with send_at_once(): ...` or `send_many`"
                )
            self.all.append(follow_up)
            return True

    def close(self) -> list[FollowUp]:
        """Return all: the job has succeeded, and what comes now would be kept for nothing."""
        with _adding:
            self._is_closed = True
            return self.all


_collecting: ContextVar[FollowUps | None] = ContextVar("follow_ups", default=None)


def collecting() -> FollowUps | None:
    """Return where this code's sends are kept, or None where they go out at once."""
    return _collecting.get()


@contextmanager
def collect(follow_ups: FollowUps | None) -> Generator[None]:
    """Keep what is sent within it; None for sending at once."""
    token = _collecting.set(follow_ups)
    try:
        yield
    finally:
        _collecting.reset(token)


@contextmanager
def send_at_once() -> Generator[None]:
    """Within it, a job's sends go out now, whatever becomes of the job."""
    with collect(None):
        yield
