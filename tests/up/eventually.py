"""Waiting in tests: ask until the answer is yes, never sleep and hope."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], timeout_seconds: float = 10.0) -> T:
    """Return the first answer that counts as true; fail with the last one after the time-out."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout_seconds} s"
        time.sleep(0.02)
    return answer
