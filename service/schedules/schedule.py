"""What a schedule is: a name, an actor with its payload, and when."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Protocol, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from service.errors import DeclarationError

_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_SUNDAY = 7

#: No clock is put forward or back by more, but where a country moved across the date line.
_LONGEST_CHANGE = timedelta(hours=3)
_LONGEST_INTERVAL_SECONDS = 10 * 366 * 24 * 3600
_ANY_LEAP_DAY = datetime(2024, 1, 1, tzinfo=UTC)


class When(Protocol):
    """When a schedule is due."""

    def after(self, moment: datetime) -> datetime:
        """Return the first due time later than a moment. Both are aware; the result is in UTC."""
        ...


@dataclass(frozen=True)
class Cron:
    """A crontab line of five fields in a time zone: numbers, ranges, steps, lists, and three-letter English names.

    Weekdays as crontab has them: 0 and 7 are Sunday. When a clock is put forward, what was due in the skipped hour
    is due as much later as the clock was put forward. When it is put back, a line whose hours begin with `*` goes on
    through both passes of the repeated hour, any other is due in the first pass alone.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if self._trigger.get_next_fire_time(None, _ANY_LEAP_DAY) is None:  # a mistake is raised where it is written
            raise DeclarationError(f"Cron({self.expression!r}): no year has such a day")

    def after(self, moment: datetime) -> datetime:
        """Return the first due time later than a moment."""
        # Near a change, clocks read alike twice or not at all, and times by the wall are not in order.
        wall = self._wall(moment) - self._change_near(moment)
        found: list[datetime] = []
        while wall := self._next_on_the_wall(wall):
            if found and wall > self._wall(min(found)) + self._change_near(min(found)):
                return min(found)
            found += [due for due in self._moments(wall) if due > moment]
        if found:
            return min(found)
        raise DeclarationError(f"Cron({self.expression!r}): is never due after {moment.isoformat()}")

    def _next_on_the_wall(self, wall: datetime) -> datetime | None:
        # Clocks that never change have no hour in which APScheduler's trigger could stumble.
        found = self._trigger.get_next_fire_time(None, wall.replace(tzinfo=UTC) + timedelta(microseconds=1))
        return None if found is None else cast("datetime", found).replace(tzinfo=None)

    def _moments(self, wall: datetime) -> list[datetime]:
        """Return when the zone's clocks show a time: once, or twice where they are put back."""
        first, second = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        is_twice = second > first and self.expression.split()[1].startswith("*")
        return [first, second] if is_twice else [first]

    def _change_near(self, moment: datetime) -> timedelta:
        """Return by how much the zone's clocks are changed within the next or last hours."""
        near = (moment - _LONGEST_CHANGE, moment, moment + _LONGEST_CHANGE)
        offsets = [each.astimezone(self._zone).utcoffset() or timedelta(0) for each in near]
        return max(offsets) - min(offsets)

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None)

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.timezone)
        except (ValueError, OSError, ZoneInfoNotFoundError) as error:
            raise DeclarationError(f"Cron({self.expression!r}, {self.timezone!r}): {error}") from None

    @cached_property
    def _trigger(self) -> Any:
        # Without types; met here only.
        from apscheduler.triggers.cron import CronTrigger  # pyright: ignore[reportMissingTypeStubs]

        _ = self._zone
        try:
            return cast("Any", CronTrigger).from_crontab(_line_for_apscheduler(self.expression), timezone=UTC)
        except ValueError as error:
            raise DeclarationError(f"Cron({self.expression!r}, {self.timezone!r}): {error}") from None


@dataclass(frozen=True)
class Every:
    """A fixed interval, counted from midnight UTC of 1970-01-01, so that all schedulers agree on it."""

    seconds: int

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= _LONGEST_INTERVAL_SECONDS:
            raise DeclarationError(f"Every(seconds={self.seconds}): must be 1 to {_LONGEST_INTERVAL_SECONDS}")

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


def _line_for_apscheduler(expression: str) -> str:
    # Checked here in full: what APScheduler reads in its own way would be another time, not a refusal.
    fields = expression.lower().split()
    if len(fields) != len(_FIELDS):
        raise ValueError("must have five fields: minute, hour, day of the month, month, day of the week")
    fields[3] = _with_numbers(fields[3], _MONTHS)
    fields[4] = _with_numbers(fields[4], _WEEKDAYS)
    for name, text in zip(_FIELDS, fields, strict=True):
        if not all(re.fullmatch(r"(\*|[0-9]+(-[0-9]+)?)(/[0-9]+)?", item) for item in text.split(",")):
            raise ValueError(f"{text!r} is no {name}, list or range of them")
    if not fields[2].startswith("*") and not fields[4].startswith("*"):
        # crontab takes either of the two, APScheduler both: refused rather than given another meaning.
        raise ValueError("a day of the month and a day of the week can't be given together")
    # APScheduler counts weekdays from Monday, crontab from Sunday: names mean the same to both.
    fields[4] = ",".join(_weekday_names(item) for item in fields[4].split(","))
    return " ".join(fields)


def _with_numbers(text: str, names: Mapping[str, int]) -> str:
    # A range may end with Sunday, which is 7 then.
    text = re.sub(r"-sun\b", f"-{_SUNDAY}", text)
    return re.sub(r"[a-z]+", lambda found: str(names.get(found[0], found[0])), text)


def _weekday_names(item: str) -> str:
    if item == "*":
        return item
    days, _, step = item.partition("/")
    first, _, last = days.partition("-")
    start = 0 if first == "*" else int(first)
    end = int(last) if last else (6 if first == "*" or step else start)
    if not start <= end <= _SUNDAY or step == "0":
        raise ValueError(f"{item!r} is no day of the week, or no range of them")
    names = list(_WEEKDAYS)
    return ",".join(names[number % _SUNDAY] for number in range(start, end + 1, int(step or 1)))
