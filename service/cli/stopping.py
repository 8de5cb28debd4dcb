"""How a long-running command learns that it is to stop."""

import signal
import threading
from collections.abc import Callable
from types import FrameType


def _nothing() -> None:
    pass


def stop_on_signals(and_then: Callable[[], None] = _nothing) -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets; a second signal changes nothing.

    `and_then` is called at each signal, for what has to be told in another way.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        and_then()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop
