"""How a long-running command learns that it is to stop."""

import signal
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import FrameType


def react_to_signals(numbers: Iterable[signal.Signals], react: Callable[[int], None]) -> None:
    """Call `react` for each of these signals, in a thread of its own.

    A signal's handler interrupts the main thread anywhere, also where it holds the lock of the very event that the
    handler wants to set, and then both wait for ever. Putting into this kind of queue needs no lock.
    """
    received: SimpleQueue[int] = SimpleQueue()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.put(number)

    def pass_on() -> None:
        while True:
            react(received.get())

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, on_signal)


def _nothing() -> None:
    pass


def stop_on_signals(and_then: Callable[[], None] = _nothing) -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets; a second signal changes nothing.

    `and_then` is called at each signal, for what has to be told in another way.
    """
    stop = threading.Event()

    def react(_number: int) -> None:
        stop.set()
        and_then()

    react_to_signals((signal.SIGTERM, signal.SIGINT), react)
    return stop
