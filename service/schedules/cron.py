"""Due times by a crontab line. APScheduler's trigger does the sums, on a clock that never changes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, cast
from zoneinfo import ZoneInfo

from service.errors import DeclarationError
from service.schedules.crontab import line_for_apscheduler
from service.schedules.zones import moment_of, wall_of, zone_named

#: No clock is put forward or back by more, but where a country moved across the date line.
_LONGEST_CHANGE = timedelta(hours=3)
_ANY_LEAP_DAY = datetime(2024, 1, 1, tzinfo=UTC)


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

    def after(self, moment: datetime) -> datetime | None:
        """Return the first due time later than a moment. None where the years that APScheduler counts have ended."""
        # Near a change, clocks read alike twice or not at all, and times by the wall are not in order.
        wall = wall_of(moment, self._zone) - self._change_near(moment)
        found: list[datetime] = []
        while wall := self._next_on_the_wall(wall):
            if found and wall > wall_of(min(found), self._zone) + self._change_near(min(found)):
                return min(found)
            found += [due for due in self._moments(wall) if due > moment]
        return min(found) if found else None

    def _next_on_the_wall(self, wall: datetime) -> datetime | None:
        # Clocks that never change have no hour in which APScheduler's trigger could stumble.
        found = self._trigger.get_next_fire_time(None, wall.replace(tzinfo=UTC) + timedelta(microseconds=1))
        return None if found is None else cast("datetime", found).replace(tzinfo=None)

    def _moments(self, wall: datetime) -> list[datetime]:
        """Return when the zone's clocks show a time: once, or twice where they are put back."""
        first, second = (moment_of(wall, self._zone, fold) for fold in (0, 1))
        is_twice = second > first and self.expression.split()[1].startswith("*")
        return [first, second] if is_twice else [first]

    def _change_near(self, moment: datetime) -> timedelta:
        """Return by how much the zone's clocks are changed within the next or last hours."""
        near = (moment - _LONGEST_CHANGE, moment, moment + _LONGEST_CHANGE)
        offsets = [each.astimezone(self._zone).utcoffset() or timedelta(0) for each in near]
        return max(offsets) - min(offsets)

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return zone_named(self.timezone)
        except ValueError as error:
            raise DeclarationError(f"Cron({self.expression!r}, {self.timezone!r}): {error}") from None

    @cached_property
    def _trigger(self) -> Any:
        # Without types; met here only.
        from apscheduler.triggers.cron import CronTrigger  # pyright: ignore[reportMissingTypeStubs]

        _ = self._zone
        try:
            return cast("Any", CronTrigger).from_crontab(line_for_apscheduler(self.expression), timezone=UTC)
        except ValueError as error:
            raise DeclarationError(f"Cron({self.expression!r}, {self.timezone!r}): {error}") from None
