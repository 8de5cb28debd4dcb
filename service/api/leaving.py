"""Tells requests that wait, or stream, that the process is about to end: the server waits for them otherwise."""

import asyncio
from contextlib import suppress


class Leaving:
    """Set once, from any thread or a signal handler."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Wake all who sleep, and let nobody sleep again."""
        self.is_set = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._wake)

    async def sleep(self, seconds: float, *, until: asyncio.Event | None = None) -> None:
        """Return after some seconds, when the process is about to end, or when an event is set."""
        if self.is_set:
            return
        self._loop = asyncio.get_running_loop()
        event = until or asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()
