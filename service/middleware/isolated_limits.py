"""The limits that a job's own process keeps: it is told of its soft time limit, and gets no more memory than it may.

Its hard time limit is the worker's business, which kills the process: nothing in here can be trusted to.
"""

import resource
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from types import FrameType

from service.errors import SoftTimeLimit

#: Not used by anything else, and its default would end the process. Interrupts a blocking call of the main thread.
SOFT_SIGNAL = signal.SIGXCPU
MIB = 1024 * 1024


class SoftLimit:
    """Raises SoftTimeLimit in the main thread, which runs the job, once."""

    def __init__(self) -> None:
        self._at = inf
        self._is_on = False
        signal.signal(SOFT_SIGNAL, self._arrive)

    def look(self) -> None:
        """Send the signal when it is time. Called over and over by a thread of its own."""
        if time.monotonic() >= self._at:
            self._at = inf
            signal.pthread_kill(threading.main_thread().ident or 0, SOFT_SIGNAL)

    @contextmanager
    def within(self, seconds: float | None) -> Generator[None]:
        """Bound what runs in it; None for no bound."""
        self._is_on = seconds is not None
        self._at = inf if seconds is None else time.monotonic() + seconds
        try:
            yield
        finally:
            self._is_on = False  # a signal that comes later finds nobody
            self._at = inf

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        if self._is_on:
            self._is_on = False
            raise SoftTimeLimit


class MemoryLimit:
    """Bounds what the process may allocate, all that it has loaded included."""

    def __init__(self) -> None:
        #: Whether a job has met its limit: what is left of the memory is in pieces.
        self.is_spent = False

    @contextmanager
    def within(self, megabytes: int | None) -> Generator[None]:
        """Bound what runs in it; None for no bound. Raises MemoryError that says so."""
        if megabytes is None:
            yield
            return
        # Of data, not of addresses: those that threads and libraries reserve are many times what they use.
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = megabytes * MIB if hard == resource.RLIM_INFINITY else min(megabytes * MIB, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        try:
            yield
        except MemoryError as error:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # first: a text takes memory too
            self.is_spent = True
            error.args = (f"The job needs more memory than its memory_limit_mb={megabytes} allows",)
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
