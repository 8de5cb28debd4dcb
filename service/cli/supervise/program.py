"""What is to be run."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


def nothing() -> None:
    """Do nothing: the default of a hook."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process to run, in a session and a process group of its own.

    env: its whole environment; None is the supervisor's own.
    log: the file that gets its output; None leaves it the supervisor's own.
    stop_signal: what asks it to stop.
    once: it is meant to end, so it is not replaced.
    owner: user and group id to run as.
    before_start: is called before each start; a server cleans up there what its predecessor left.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    log: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    once: bool = False
    owner: tuple[int, int] | None = None
    pass_fds: tuple[int, ...] = ()
    before_start: Callable[[], None] = nothing
