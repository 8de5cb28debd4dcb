"""Where requests wait: one line for each kind of work, so that a server which hangs holds up nothing but its own."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from anyio import CapacityLimiter, Semaphore, fail_after, to_thread

from service.errors import BrokerUnavailable, CallboardError, HistoryUnavailable, ServiceBusy

R = TypeVar("R")

LINE_SECONDS = 5.0
LONGEST_LINE = 500


class Line:
    """Calls that block, each in a thread: `threads` at once, the others in line, for `LINE_SECONDS` at most."""

    def __init__(self, threads: int, refuse: Callable[[str], CallboardError]) -> None:
        self._free = Semaphore(threads)
        self._unlimited = CapacityLimiter(inf)
        self._refuse = refuse

    async def run(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call a function in a thread. Raises what `refuse` makes where the line is too long or does not move."""
        if self._free.statistics().tasks_waiting >= LONGEST_LINE:
            raise self._refuse(f"{LONGEST_LINE} requests are waiting already")
        try:
            with fail_after(LINE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise self._refuse(f"The requests before this one took more than {LINE_SECONDS:g} s") from None
        try:
            # Not to be broken off: a thread that was given up would go on outside of the count.
            return await to_thread.run_sync(function, *arguments, limiter=self._unlimited)
        finally:
            self._free.release()


@dataclass(frozen=True)
class Lines:
    """The lines of one application."""

    checks: Line
    sends: Line
    reads: Line
    acts: Line
    tasks: Line

    @classmethod
    def make(cls) -> "Lines":
        """Checking needs a processor, sending Redis, reading first of all one of PostgreSQL's 15 connections, and what
        operators do may take seconds.
        """
        return cls(
            checks=Line(4, ServiceBusy),
            sends=Line(20, lambda reason: BrokerUnavailable(reason, may_be_stored=False)),
            reads=Line(12, HistoryUnavailable),
            acts=Line(4, ServiceBusy),
            tasks=Line(3, HistoryUnavailable),
        )
