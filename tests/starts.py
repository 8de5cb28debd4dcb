"""Jobs of `actor_modules/delays_jobs.py`, and what they note: each start with its process and its time."""

from typing import Any, NamedTuple

from dramatiq.message import Message

from tests.e2e.conftest import Service

ACTORS = {"CALLBOARD_ACTORS": "delays_jobs"}


class Start(NamedTuple):
    """A job has started."""

    word: str
    pid: int
    at: float


def note(word: str, seconds: float = 0.0, *, queue: str = "default", **options: Any) -> Message[Any]:
    """A job that notes its start, and lasts."""
    return Message(queue_name=queue, actor_name=f"note.{queue}", args=(word, seconds), kwargs={}, options=options)


def nap(seconds: float = 0.0, **options: Any) -> Message[Any]:
    """A job that lasts, and notes nothing."""
    return Message(queue_name="default", actor_name="nap.default", args=(seconds,), kwargs={}, options=options)


def starts(service: Service) -> list[Start]:
    """All starts, in their order."""
    rows = [line.split() for line in service.notes()]
    return [Start(row[0], int(row[1]), float(row[2])) for row in rows if len(row) == 3]


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
