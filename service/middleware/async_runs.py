"""Runs of `async def` jobs that hold no thread: a worker thread begins one and goes on, and one of them ends it.

The hooks before and after run in worker threads as for any job, in one context, so that what a hook has set is there
for the next. Only the coroutine runs on the event loop.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from dramatiq.middleware.time_limit import TimeLimitExceeded

from service.broker.cancelled import Cancelled
from service.broker.delivery import Delivery
from service.errors import SoftTimeLimit
from service.middleware.time_limit import EXCEEDED


class JobExited(Exception):
    """The job called `sys.exit()`, or raised what would end the process. It fails instead."""


async def contained(job: Awaitable[Any]) -> Any:
    """Await a job. asyncio lets these two through to whoever runs the loop, which would end with them."""
    try:
        return await job
    except (SystemExit, KeyboardInterrupt) as error:
        raise JobExited(f"The job raised {error!r}") from error


class AsyncRun:
    """One run of a coroutine. `on_end` is called when it is over, with nothing left to interrupt."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delivery: Delivery, on_end: Callable[[Delivery], None]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._halves = itertools.count(1)
        self._loop = loop
        self._delivery = delivery
        self._on_end = on_end
        self._task: asyncio.Task[Any] | None = None
        self._interruption: type[BaseException] | None = None
        #: What the coroutine is still to meet at its next `await`, in place of a bare cancellation.
        self._to_meet: type[BaseException] | None = None

    def begin(self, job: Coroutine[Any, Any, Any]) -> None:
        """Have a coroutine run, in a copy of this thread's context."""
        self._delivery.left = self
        self._delivery.begin(self._interrupt)
        self._loop.call_soon_threadsafe(self._begin, job)
        if self._delivery.is_cancelled:
            self._interrupt(Cancelled)  # it came before the beginning, and could interrupt nothing

    def half_over(self) -> None:
        """Say that the coroutine has ended, or that its first thread is out of the hooks: either may come first."""
        if next(self._halves) == 2:
            self._on_end(self._delivery)

    def _begin(self, job: Coroutine[Any, Any, Any]) -> None:
        self._task = self._loop.create_task(contained(_Steered(job, self._taken)))
        # Not inside of the coroutine: one that is cancelled at once never begins.
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._delivery.runner = None
        if not task.cancelled():
            self.error = task.exception()
            self.result = None if self.error else task.result()
        elif self._interruption is TimeLimitExceeded:
            self.error = TimeLimitExceeded(EXCEEDED)
        else:
            self.error = (self._interruption or asyncio.CancelledError)()
        self.half_over()

    def _interrupt(self, exception: type[BaseException]) -> None:
        self._loop.call_soon_threadsafe(self._cancel, exception)

    def _cancel(self, exception: type[BaseException]) -> None:
        if not issubclass(exception, SoftTimeLimit):
            self._interruption = exception
        self._to_meet = exception if issubclass(exception, SoftTimeLimit | Cancelled) else None
        if self._task:
            self._task.cancel()

    def _taken(self) -> BaseException | None:
        to_meet, self._to_meet = self._to_meet, None
        return to_meet() if to_meet else None


class _Steered:
    """Awaits a coroutine, which meets SoftTimeLimit or Cancelled where its task was cancelled for that."""

    def __init__(self, job: Coroutine[Any, Any, Any], taken: Callable[[], BaseException | None]) -> None:
        self._job = job
        self._taken = taken

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                awaited = self._job.send(value) if error is None else self._job.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                value = yield awaited
            except asyncio.CancelledError as cancelled:
                error = self._taken() or cancelled
                if isinstance(error, SoftTimeLimit) and (task := asyncio.current_task()):
                    task.uncancel()  # else its own time-outs take it for a cancellation that is still to come
            except BaseException as thrown:  # noqa: BLE001 - it is the job's
                error = thrown
