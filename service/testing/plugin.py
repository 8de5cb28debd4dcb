"""The pytest plugin `callboard`: one fixture. What it needs is imported when a test asks for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from service.testing.callboard import Callboard


@pytest.fixture(name="callboard")
def _callboard() -> "Iterator[Callboard]":  # pyright: ignore[reportUnusedFunction]
    """The service in this process's memory: sends are recorded, or run at once, and no server is needed."""
    from service.broker import broker
    from service.testing.callboard import Callboard

    with Callboard.on(broker) as callboard:
        yield callboard
