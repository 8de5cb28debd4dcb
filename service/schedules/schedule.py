"""What a schedule is: a name, an actor with its payload, and when."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Protocol, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from service.errors import DeclarationError

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


class When(Protocol):
    """When a schedule is due."""

    def after(self, moment: datetime) -> datetime:
        """Return the first due time later than a moment. Both are aware; the result is in UTC."""
        ...


@dataclass(frozen=True)
class Cron:
    """A crontab line of five fields in a time zone. Weekdays as crontab has them: 0 and 7 are Sunday."""

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _ = self._trigger  # a mistake is raised where the schedule is written

    def after(self, moment: datetime) -> datetime:
        """Return the first due time later than a moment."""
        due = moment
        # Asked within the hour that autumn repeats, the trigger can answer with a time that has passed.
        for minutes in range(1, 24 * 60):
            due = self._trigger.get_next_fire_time(None, moment + timedelta(minutes=minutes - 1, microseconds=1))
            if due is not None and due > moment:
                return cast("datetime", due).astimezone(UTC)
        raise DeclarationError(f"Cron({self.expression!r}): is never due after {moment.isoformat()}")

    @cached_property
    def _trigger(self) -> Any:
        # Without types; met here only.
        from apscheduler.triggers.cron import CronTrigger  # pyright: ignore[reportMissingTypeStubs]

        try:
            minute, hour, day, month, weekday = self.expression.split()
            if "*" not in day and "*" not in weekday:
                # crontab takes either of the two, APScheduler both: refused rather than given another meaning.
                raise ValueError("a day of the month and a day of the week can't be given together")
            line = " ".join((minute, hour, day, month, _with_weekday_names(weekday)))
            return cast("Any", CronTrigger).from_crontab(line, timezone=ZoneInfo(self.timezone))
        except (ValueError, ZoneInfoNotFoundError) as error:
            raise DeclarationError(f"Cron({self.expression!r}, {self.timezone!r}): {error}") from None


@dataclass(frozen=True)
class Every:
    """A fixed interval, counted from midnight UTC of 1970-01-01, so that all schedulers agree on it."""

    seconds: int

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise DeclarationError(f"Every(seconds={self.seconds}): must be at least 1")

    def after(self, moment: datetime) -> datetime:
        """Return the first due time later than a moment."""
        return datetime.fromtimestamp((int(moment.timestamp()) // self.seconds + 1) * self.seconds, UTC)


@dataclass(frozen=True)
class Schedule:
    """Sends a job of `actor` with `payload` at each due time of `when`. The name tells schedules apart for ever."""

    name: str
    actor: str
    when: When
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _with_weekday_names(field: str) -> str:
    # APScheduler counts weekdays from Monday, crontab from Sunday: names mean the same to both.
    return ",".join(_weekday_names(item) for item in field.split(","))


def _weekday_names(item: str) -> str:
    found = re.fullmatch(r"(?:(\d+)(?:-(\d+))?|\*)(?:/(\d+))?", item)
    if not found or item == "*":
        return item
    first, last, step = found.groups()
    start = int(first or 0)
    end = int(last) if last else (6 if not first or step else start)
    if not start <= end < len(_WEEKDAYS) or step == "0":
        raise ValueError(f"{item!r} is no day of the week, or no range of them")
    return ",".join(_WEEKDAYS[number] for number in range(start, end + 1, int(step or 1)))
