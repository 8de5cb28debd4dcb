"""What schedulers know of a schedule together: one value, replaced as a whole. Its JSON is in Redis, and in PostgreSQL.

A field may be added with a default: a scheduler of the release before passes over what it does not know.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Run:
    """One job of a schedule. `scheduled_for` is its nominal time, whenever it is sent or runs."""

    job_id: str
    scheduled_for: datetime
    #: "due", "missed" for one that is made up for, or "by-hand".
    kind: str = "due"
    delay_ms: int = 0
    #: Whether those who follow its outcome have seen it start.
    is_started: bool = False


@dataclass(frozen=True)
class Paused:
    """Why a schedule is paused, by whom, and since when."""

    by: str
    why: str
    at: datetime


@dataclass(frozen=True)
class ScheduleState:
    """Of due times up to `decided_until` it is decided whether they have a job: none of them is looked at again."""

    decided_until: datetime
    revision: int = 0
    fingerprint: str = ""
    version: int = 0
    is_deleted: bool = False
    paused: Paused | None = None
    sent: int = 0
    #: Due times that were not met in time, and how many of them were made up for.
    missed: int = 0
    caught_up: int = 0
    #: Due times without a job, since the job before had not ended.
    overlapped: int = 0
    #: Jobs in a row that died or were cancelled, where the schedule asks for a pause after some.
    failures: int = 0
    last_run: Run | None = None
    #: The last one that nobody has run by hand.
    last_due: Run | None = None
    last_error: str | None = None
    #: Jobs that are decided and maybe not in their queue yet.
    outbox: tuple[Run, ...] = ()
    #: Jobs whose outcome somebody waits for.
    followed: tuple[Run, ...] = ()

    def to_json(self) -> bytes:
        """Return it as it is stored."""
        return _states.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> "ScheduleState":
        """Read what `to_json` has written. Raises pydantic's ValidationError, a ValueError."""
        return _states.validate_json(data)

    def changed(self, now: datetime, **changes: Any) -> "ScheduleState":
        """Return it with changes, and a higher revision: of two copies, the higher one is the newer."""
        return replace(self, revision=max(self.revision + 1, int(now.timestamp() * 1000)), **changes)

    def without(self, now: datetime, job_ids: set[str], **changes: Any) -> "ScheduleState":
        """Return it with these jobs out of the outbox."""
        return self.changed(now, outbox=tuple(run for run in self.outbox if run.job_id not in job_ids), **changes)


def alive(state: ScheduleState | None) -> ScheduleState | None:
    """Return what is known of a schedule, None where that was deleted: one of its name is another one."""
    return None if state is None or state.is_deleted else state


_states = TypeAdapter(ScheduleState)
