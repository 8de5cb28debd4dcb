"""A message in a worker's hands, with what it needs to be settled."""

from threading import Lock, get_ident
from typing import Any, NamedTuple, cast

from dramatiq.broker import MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import threading as threads

from service.broker.messages import copy_message
from service.broker.outcome import Failure, Outcome


class Lease(NamedTuple):
    """The right to settle one entry of a queue. `token` rises with every delivery: an older one is refused."""

    queue: str
    entry: str
    token: str
    started_ms: int
    created_ms: int
    attempt: int
    #: Deliveries of this attempt whose worker died, and how many there may be.
    lapses: int
    max_deliveries: int

    @property
    def is_suspect(self) -> bool:
        """Whether the job may be what killed a worker: then it runs in a process of its own."""
        return self.lapses > 0 or self.max_deliveries == 1


class Delivery(MessageProxy):
    """A message in a worker's hands. `outcome` is set by the chain before the worker settles it."""

    outcome: Outcome | None = None
    #: Whether this process has its actor.
    is_known: bool = True
    #: Whether its worker stops before it can end: then it goes back, however this run ends, unless it has succeeded.
    handed_back: bool = False
    #: The dead letter that it becomes if it dies; empty for the bytes that are stored.
    dead_letter: bytes = b""
    _message: Message[Any]

    def __init__(self, message: Message[Any], lease: Lease) -> None:
        cast("Any", super()).__init__(message)
        self.lease = lease
        self._thread_id: int | None = None
        self._guard = Lock()
        # Looked up many times for each job, and slow through the proxy.
        self.message_id = message.message_id
        self.actor_name = message.actor_name
        self.queue_name = message.queue_name
        self.options = message.options
        self.args = message.args
        self.kwargs = message.kwargs

    def begin(self) -> None:
        """Note that this thread runs it from now on."""
        self._thread_id = get_ident()

    def end(self) -> None:
        """Note that it has ended: it is not interrupted any more."""
        with self._guard:
            self._thread_id = None

    def interrupt(self, exception: type[BaseException], *, hand_back: bool = False) -> bool:
        """Raise an exception in the thread that runs it. Returns False where none does.

        It can't end meanwhile: else the next job of that thread would be hit.
        """
        with self._guard:
            if self._thread_id is None:
                return False
            self.handed_back |= hand_back
            cast("Any", threads).raise_thread_exception(self._thread_id, exception)
            return True

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.lease.attempt

    def asdict(self) -> dict[str, Any]:
        """The message as Dramatiq's callbacks send it on: what JSON makes of it, so that typed actors take it too."""
        return {**self._message.asdict(), "args": list(self.args)}

    def encode(self) -> bytes:
        """The message as it is stored."""
        return self._message.encode()

    def copy_for_retry(self, traceback: str) -> Message[Any]:
        """The message of the next attempt."""
        return copy_message(self._message, options={"retries": self.attempt, "traceback": traceback})

    def copy_unchanged(self) -> Message[Any]:
        """The message as it is, to be stored for later."""
        return copy_message(self._message)

    def failure(self) -> Failure | None:
        """What the worker says went wrong, where it rejected the message itself, such as for an unknown actor."""
        return Failure.of(self._exception) if self._exception else None
