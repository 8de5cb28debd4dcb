"""Unique keys: what a send says of its own, and how it met the job that had it. The script of the send decides."""

from typing import Literal, NamedTuple

from dramatiq.message import Message

from service.broker.messages import copy_message

#: What becomes of a waiting job that a send meets.
OnConflict = Literal["keep", "replace", "reschedule"]
CONFLICTS: tuple[OnConflict, ...] = ("keep", "replace", "reschedule")
#: Where a job may be that has the key.
UniqueState = Literal["waiting", "running", "ended"]
STATES: tuple[UniqueState, ...] = ("waiting", "running", "ended")
DEFAULT_STATES: tuple[UniqueState, ...] = ("waiting", "running")


class UniqueKey(NamedTuple):
    """A key of one send. `window_ms` counts from the send; 0 for as long as the job has not ended."""

    key: str
    window_ms: int = 0
    on_conflict: OnConflict = "keep"
    states: tuple[UniqueState, ...] = DEFAULT_STATES

    def packed(self) -> list[str | int]:
        """Return it as enqueue.lua takes it."""
        return [self.key, self.window_ms, self.on_conflict, " ".join(self.states)]


class Met(NamedTuple):
    """The job that a send has met: `replaced` by it, or `rescheduled` in its place."""

    how: Literal["replaced", "rescheduled"]
    job_id: str


def as_met(message: Message[object], met: Met) -> Message[object]:
    """Return what a send that has met a job returns: a message with the id of the job that there is now.

    Its option `unique_met` is the id of the job that it met.
    """
    job_id = message.message_id if met.how == "replaced" else met.job_id
    return copy_message(message, message_id=job_id, options={"unique_met": met.job_id})
