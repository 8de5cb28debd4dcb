"""Tests of a team's own actors, without Redis: the pytest fixture `callboard`. See docs/testing.md.

pytest imports this room in every run of a project that has Callboard installed, and so it imports nothing by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.testing.callboard import Callboard, Enqueued, Run
    from service.testing.clock import Clock

__all__ = ["Callboard", "Clock", "Enqueued", "Run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{'clock' if name == 'Clock' else 'callboard'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
