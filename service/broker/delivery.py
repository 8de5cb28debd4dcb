"""A message in a worker's hands, with what it needs to be settled."""

import ctypes
import time
from collections.abc import Callable
from contextvars import Context
from threading import Lock, get_ident
from typing import Any, NamedTuple, cast

from dramatiq.broker import MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import threading as threads

from service.broker.cancelled import Cancelled
from service.broker.messages import copy_message
from service.broker.outcome import Failure, Outcome
from service.broker.outgoing import FollowUps


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
    #: The idempotency key, or nothing.
    key: str = ""
    #: Whether its key's job has ended before: then what was fetched with it is not the message but that job's record.
    is_duplicate: bool = False
    #: 0 (first) to 9, as it was fetched; None where nobody has said so.
    priority: int | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether the job may be what killed a worker: then it runs in a process of its own."""
        return self.lapses > 0 or self.max_deliveries == 1


Interrupter = Callable[[type[BaseException]], object]

#: Of nearly all jobs.
NO_FOLLOW_UPS = FollowUps()


class Delivery(MessageProxy):
    """A message in a worker's hands. `outcome` is set by the chain before the worker settles it."""

    outcome: Outcome | None = None
    #: Whether this process has its actor.
    is_known: bool = True
    #: Whether its worker stops before it can end: then it goes back, however this run ends, unless it has succeeded.
    handed_back: bool = False
    #: The context of its hooks, where it may leave the thread that begins it.
    hooks: Context | None = None
    #: What runs it outside of any thread, once it has left the one that began it.
    left: object = None
    #: The dead letter that it becomes if it dies; empty for the bytes that are stored.
    dead_letter: bytes = b""
    _message: Message[Any]

    def __init__(self, message: Message[Any], lease: Lease) -> None:
        cast("Any", super()).__init__(message)
        self.lease = lease
        #: The thread in which the actor's function runs, or what interrupts it elsewhere, while it runs.
        self.runner: int | Interrupter | None = None
        #: Whether anybody has tried to interrupt it.
        self.is_interrupted = False
        #: Whether somebody has cancelled the job: then it ends as that, however its run does.
        self.is_cancelled = False
        self._is_interrupting = False
        self._guard = Lock()
        self.follow_ups = NO_FOLLOW_UPS
        # Looked up many times for each job, and slow through the proxy.
        self.message_id = message.message_id
        self.actor_name = message.actor_name
        self.queue_name = message.queue_name
        self.options = message.options
        self.args = message.args
        self.kwargs = message.kwargs

    def __str__(self) -> str:
        # Dramatiq writes it to its logs; a payload may be personal.
        return f"{self.actor_name} {self.message_id}"

    __repr__ = __str__

    def begin(self, interrupter: Interrupter | None = None) -> None:
        """Note that the actor's function begins: it can be interrupted from now on, in this thread or by `interrupter`.

        Its end is `runner = None`, a plain store in which nothing can arrive, and `absorb` where `is_interrupted`.
        """
        self.runner = interrupter or get_ident()

    def check_cancelled(self) -> None:
        """Raise Cancelled where that has come before the beginning, and so could interrupt nothing."""
        if self.is_cancelled:
            raise Cancelled

    def absorb(self) -> None:
        """Drop what was raised in this thread too late to arrive in the actor's function. Called in that thread.

        Anywhere else it would hit a hook, or the thread's next job, or end the thread.
        """
        try:
            self._drop_pending()
        except BaseException:  # noqa: BLE001 - it has arrived here, and one more may be on its way
            self._drop_pending()

    def _drop_pending(self) -> None:
        while self._is_interrupting:
            time.sleep(0.0001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(get_ident()), None)

    def interrupt(self, exception: type[BaseException], *, hand_back: bool = False) -> bool:
        """Raise an exception in the actor's function. Returns False where it does not run, or has just ended."""
        with self._guard:
            # In this order: the thread says that it has ended, and then looks whether anybody interrupts it.
            self._is_interrupting = self.is_interrupted = True
            try:
                runner = self.runner
                if runner is None:
                    return False
                self.handed_back |= hand_back
                if isinstance(runner, int):
                    cast("Any", threads).raise_thread_exception(runner, exception)
                else:
                    runner(exception)
                return True
            finally:
                self._is_interrupting = False

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
