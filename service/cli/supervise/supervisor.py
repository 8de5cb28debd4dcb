"""Keeps children running: the one loop behind `callboard worker` and `callboard up`."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection

from service.cli.supervise.backoff import Backoff
from service.cli.supervise.child import Child, how_it_ended
from service.cli.supervise.program import Program

logger = logging.getLogger(__name__)


def _ignore(_child: Child) -> None:
    pass


def _never(_child: Child) -> bool:
    return False


class Supervisor:
    """Children by name. One thread owns it and calls `tick()` a few times a second.

    on_start and on_end are called after each start and each end of a child. A child that ends with one of `final`, exit
    codes, is not started again, nor is one that `is_over` says has done what it was there for.
    """

    def __init__(
        self,
        backoff: Backoff | None = None,
        on_start: Callable[[Child], None] = _ignore,
        on_end: Callable[[Child], None] = _ignore,
        final: Collection[int] = (),
        is_over: Callable[[Child], bool] = _never,
    ) -> None:
        self.backoff = backoff or Backoff()
        self.children: dict[str, Child] = {}
        self._on_start = on_start
        self._on_end = on_end
        self._final = final
        self._is_over = is_over

    def names(self) -> list[str]:
        """The names of all children."""
        return list(self.children)

    def start(self, program: Program) -> Child:
        """Start a program and keep it running. Raises OSError if it can't be started the first time."""
        child = Child(program)
        self.children[program.name] = child
        self._start(child)
        return child

    def tick(self) -> None:
        """Take note of what died, and start again what is due."""
        for child in self.children.values():
            if child.ended():
                self._note_death(child)
            elif child.pid is None and not child.program.once and time.monotonic() >= child.restart_at:
                self._start_again(child)

    def stop(
        self,
        names: Collection[str],
        grace_seconds: float | None = None,
        hurry: threading.Event | None = None,
    ) -> None:
        """Ask these to stop, wait until they have, and kill what outlives the grace period or when in a hurry."""
        stopping = [self.children.pop(name) for name in names if name in self.children]
        deadline = None if grace_seconds is None else time.monotonic() + grace_seconds
        for child in stopping:
            child.signal(child.program.stop_signal)
        while stopping := [child for child in stopping if not self._has_ended(child)]:
            self.tick()
            if reason := _why_kill(grace_seconds, deadline, hurry):
                self._kill(stopping, reason)
                deadline, hurry = None, None
            time.sleep(0.02)

    def _start(self, child: Child) -> None:
        child.start()
        self._on_start(child)

    def _start_again(self, child: Child) -> None:
        try:
            self._start(child)
        except OSError as error:
            # The machine may be short of memory or processes for a while; those that run must stay supervised.
            child.young_deaths += 1
            self._schedule(child, f"could not be started ({error})")

    def _note_death(self, child: Child) -> None:
        self._on_end(child)
        if child.program.once:
            return
        if child.exit_code in self._final or self._is_over(child):
            child.restart_at = math.inf
            logger.error("%s %s, and is not started again", child.name, how_it_ended(child.exit_code))
            return
        young = self.backoff.is_young(child.lifetime_seconds)
        child.young_deaths = child.young_deaths + 1 if young else 0
        self._schedule(child, how_it_ended(child.exit_code))

    def _schedule(self, child: Child, what_happened: str) -> None:
        delay_seconds = self.backoff.delay_seconds(child.young_deaths)
        child.restart_at = time.monotonic() + delay_seconds
        logger.warning("%s %s; starting it again in %g s", child.name, what_happened, delay_seconds)

    def _has_ended(self, child: Child) -> bool:
        if child.pid is not None and not child.ended():
            return False
        self._on_end(child)
        return True

    @staticmethod
    def _kill(children: Collection[Child], reason: str) -> None:
        for child in children:
            logger.warning("Killing %s: %s", child.name, reason)
            child.signal(signal.SIGCONT)
            child.kill()


def _why_kill(grace_seconds: float | None, deadline: float | None, hurry: threading.Event | None) -> str | None:
    if hurry is not None and hurry.is_set():
        return "it was asked to hurry"
    if deadline is not None and time.monotonic() > deadline:
        return f"it did not stop within {grace_seconds:g} s"
    return None
