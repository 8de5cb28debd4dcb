"""How a long-running command learns that it is to stop."""

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets; a second signal changes nothing."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop
