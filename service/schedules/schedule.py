"""What a schedule is: a name, an actor with its payload, when it is due, and what holds when that can't be kept."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, get_args

from service.durations import seconds_of
from service.errors import DeclarationError
from service.schedules.cron import Cron
from service.schedules.interval import Every
from service.schedules.once import Once

__all__ = ["Cron", "Every", "Missed", "Once", "Overlap", "Schedule", "When"]

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip"]

MOST_CAUGHT_UP = 1000
LONGEST_JITTER_SECONDS = 24 * 3600


class When(Protocol):
    """When a schedule is due."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first due time later than a moment, in UTC, or None. Both are aware."""
        ...


@dataclass(frozen=True)
class Schedule:
    """Sends a job of `actor` with `payload` at each due time of `when`. The name tells schedules apart for ever.

    start, end: no due time before the one, none after the other. Both are aware.
    missed: of due times that passed while no scheduler could send: "skip" all, send the newest "once", or "all", the
        newest `most` of them.
    window: a missed due time that is older is not made up for: seconds, or a text such as "1h". None for no limit.
    overlap: "skip" a due time while the job of the one before has not ended.
    jitter: each job waits in its queue for up to so long, always the same for the same due time.
    pause_after_failures: so many failures in a row pause the schedule.
    tenant: for whom the jobs work.
    version: 0 in code; of a stored one it rises with each change.
    """

    name: str
    actor: str
    when: When
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: datetime | None = None
    end: datetime | None = None
    missed: Missed = "once"
    window: float | str | None = None
    most: int = 100
    overlap: Overlap = "allow"
    jitter: float | str = 0
    pause_after_failures: int | None = None
    tenant: str | None = None
    version: int = 0

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise DeclarationError(f"The name {self.name!r} of a schedule must be printable text")
        for option, allowed in (("missed", get_args(Missed)), ("overlap", get_args(Overlap))):
            if getattr(self, option) not in allowed:
                raise self._wrong(f"{option}={getattr(self, option)!r} must be one of {', '.join(allowed)}")
        for option, given in (("start", self.start), ("end", self.end)):
            if given is not None and given.tzinfo is None:
                raise self._wrong(f"{option} must say its time zone, as in datetime(..., tzinfo=ZoneInfo(...))")
        if self.start and self.end and self.end < self.start:
            raise self._wrong("end is before start")
        if type(self.most) is not int or not 1 <= self.most <= MOST_CAUGHT_UP:
            raise self._wrong(f"most={self.most!r} must be 1 to {MOST_CAUGHT_UP}")
        failures = self.pause_after_failures
        if failures is not None and (type(failures) is not int or failures < 1):
            raise self._wrong(f"pause_after_failures={failures!r} must be 1 or more")
        _ = self.window_seconds
        if self.jitter_ms > LONGEST_JITTER_SECONDS * 1000:
            raise self._wrong(f"jitter={self.jitter!r} must be up to {LONGEST_JITTER_SECONDS} seconds")

    def after(self, moment: datetime) -> datetime | None:
        """Return the first due time later than a moment, within the bounds."""
        if self.start and moment < self.start:
            moment = self.start - timedelta(microseconds=1)
        due = self.when.after(moment)
        return None if due is None or (self.end and due > self.end) else due

    @property
    def timezone(self) -> str:
        """Whose clocks it goes by."""
        return getattr(self.when, "timezone", "UTC")

    @property
    def window_seconds(self) -> float | None:
        return None if self.window is None else seconds_of(self.window, f"The schedule {self.name!r}: window")

    @property
    def jitter_ms(self) -> int:
        return int(seconds_of(self.jitter, f"The schedule {self.name!r}: jitter") * 1000) if self.jitter else 0

    def delay_ms(self, due: datetime) -> int:
        """Return how long the job of a due time waits: the same for whoever asks."""
        if not self.jitter_ms:
            return 0
        digest = hashlib.sha256(f"{self.name} {due.astimezone(UTC).isoformat()}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % (self.jitter_ms + 1)

    @property
    def fingerprint(self) -> str:
        """Tells two plans apart: what was due by one and is not by the other was not missed."""
        plan = f"{self.when!r} {self.start} {self.end}"
        return hashlib.sha256(plan.encode()).hexdigest()[:16]

    def _wrong(self, why: str) -> DeclarationError:
        return DeclarationError(f"The schedule {self.name!r}: {why}")
