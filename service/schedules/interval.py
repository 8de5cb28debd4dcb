"""Due times by an interval. Each unit has one rule: days and weeks are the calendar's, what is shorter has elapsed.

Sums of our own: APScheduler's interval counts in floats from the start of a process, and its calendar interval passes
over a day whose hour the clocks skip.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from service.errors import DeclarationError
from service.schedules.zones import moment_of, wall_of, zone_named

_LONGEST = timedelta(days=10 * 366)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - on the wall of whatever zone
_FIRST_MONDAY = datetime(1970, 1, 5)  # noqa: DTZ001


@dataclass(frozen=True)
class Every:
    """A fixed interval, in days and weeks or in what is shorter.

    Days and weeks keep the clock on the wall of `timezone`: what is skipped when clocks are put forward is due as much
    later that day, what is repeated is due in the first pass. Hours, minutes and seconds keep the time that elapses,
    and so another hour on the wall after a change.

    The first due time is `start`, on the wall of `timezone` where it names no zone itself. Without one, intervals are
    counted from midnight of 1970-01-01, weeks from the Monday after it, so that all schedulers agree: days in
    `timezone`, what is shorter in UTC.
    """

    seconds: int = 0
    minutes: int = 0
    hours: int = 0
    days: int = 0
    weeks: int = 0
    timezone: str = "UTC"
    start: datetime | None = None

    def __post_init__(self) -> None:
        units = (self.seconds, self.minutes, self.hours, self.days, self.weeks)
        if any(type(unit) is not int or unit < 0 for unit in units):
            raise DeclarationError(f"{self}: each unit must be a whole number, 0 or more")
        if any(unit > _LONGEST.total_seconds() for unit in units) or not timedelta() < self._step <= _LONGEST:
            raise DeclarationError(f"{self}: must be 1 second to {_LONGEST.days} days")
        if (self.days or self.weeks) and (self.seconds or self.minutes or self.hours):
            raise DeclarationError(
                f"{self}: days and weeks keep the clock on the wall, what is shorter the time that elapses: "
                "they can't be given together"
            )
        _ = self._zone

    def after(self, moment: datetime) -> datetime | None:
        """Return the first due time later than a moment."""
        try:
            return self._after_by_the_calendar(moment) if self.days or self.weeks else self._after_elapsed(moment)
        except OverflowError:
            return None

    def _after_elapsed(self, moment: datetime) -> datetime:
        first = moment_of(_EPOCH, ZoneInfo("UTC")) if self.start is None else self._start
        passed = (moment - first) // self._step + 1
        return first + max(passed, 0) * self._step

    def _after_by_the_calendar(self, moment: datetime) -> datetime:
        anchor = _EPOCH if self.days else _FIRST_MONDAY
        if self.start is not None:
            anchor = wall_of(self._start, self._zone)
        # One sooner: near a change, what is later on the wall may be sooner.
        passed = max((wall_of(moment, self._zone) - anchor) // self._step - 1, 0)
        while (due := moment_of(anchor + passed * self._step, self._zone)) <= moment:
            passed += 1
        return due

    @property
    def _start(self) -> datetime:
        assert self.start is not None
        return self.start.astimezone(UTC) if self.start.tzinfo else moment_of(self.start, self._zone)

    @cached_property
    def _step(self) -> timedelta:
        return timedelta(seconds=self.seconds, minutes=self.minutes, hours=self.hours, days=self.days, weeks=self.weeks)

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return zone_named(self.timezone)
        except ValueError as error:
            raise DeclarationError(f"{self}: {error}") from None

    def __str__(self) -> str:
        units = ("seconds", "minutes", "hours", "days", "weeks")
        given = [f"{unit}={getattr(self, unit)}" for unit in units if getattr(self, unit)]
        return f"Every({', '.join(given) or 'seconds=0'})"
