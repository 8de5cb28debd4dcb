"""The event loop of `async def` actors: one for a worker process, and no job can end it for the others."""

from collections.abc import Awaitable
from typing import Any, TypeVar, cast

from dramatiq.asyncio import EventLoopThread, set_event_loop_thread
from dramatiq.broker import Broker
from dramatiq.middleware import AsyncIO

R = TypeVar("R")


class JobExited(Exception):
    """The job called `sys.exit()`, or raised what would end the process. It fails instead."""


class EventLoop(AsyncIO):
    """Dramatiq's AsyncIO, with a loop that outlives SystemExit and KeyboardInterrupt in a coroutine."""

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        thread = _Thread(self.logger)
        thread.start(timeout=5.0)
        set_event_loop_thread(thread)


class _Thread(EventLoopThread):
    # A worker that ends in another way than by stopping must not wait for this thread.
    daemon = True

    def run_coroutine(self, coro: Awaitable[R]) -> R:
        return cast("Any", super()).run_coroutine(_contained(coro))


async def _contained(job: Awaitable[R]) -> R:
    # asyncio lets these two through to whoever runs the loop, which would end with them.
    try:
        return await job
    except (SystemExit, KeyboardInterrupt) as error:
        raise JobExited(f"The job raised {error!r}") from error
