"""A schedule as JSON: what the API takes and shows, and what the table of schedules holds."""

from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from service.errors import DeclarationError, InvalidRequest
from service.schedules.schedule import Cron, Every, Missed, Once, Overlap, Schedule, When
from service.schedules.zones import zone_named

NAME = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}"
#: No calendar of people goes further, and no sum overflows.
FIRST_YEAR, LAST_YEAR = 1970, 2200


class Interval(BaseModel):
    """Days and weeks keep the clock on the wall, what is shorter the time that elapses: the two don't go together."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: Annotated[int, Field(ge=0)] = 0
    minutes: Annotated[int, Field(ge=0)] = 0
    hours: Annotated[int, Field(ge=0)] = 0
    days: Annotated[int, Field(ge=0)] = 0
    weeks: Annotated[int, Field(ge=0)] = 0


class Plan(BaseModel):
    """When a schedule is due: `cron`, `every` or `at`, one of them."""

    model_config = ConfigDict(extra="forbid", str_max_length=1000)

    cron: Annotated[str | None, Field(description="A crontab line of five fields; weekdays 0 and 7 are Sunday.")] = None
    every: Annotated[Interval | None, Field(description="An interval, counted from `start`.")] = None
    at: Annotated[datetime | None, Field(description="One date and time.")] = None
    timezone: Annotated[str, Field(description="Of the IANA database. Times without an offset are its own.")] = "UTC"
    start: Annotated[datetime | None, Field(description="No due time is before it.")] = None
    end: Annotated[datetime | None, Field(description="No due time is after it.")] = None

    @model_validator(mode="after")
    def _times_are_near(self) -> "Plan":
        for name in ("at", "start", "end"):
            time: datetime | None = getattr(self, name)
            if time is not None and not FIRST_YEAR <= time.year <= LAST_YEAR:
                raise ValueError(f"{name} must be in the years {FIRST_YEAR} to {LAST_YEAR}")
        return self

    def schedule(self, name: str, actor: str, **policy: Any) -> Schedule:
        """Return the schedule. Raises InvalidRequest, which names the field."""
        zone = self._zone()
        bounds = {"start": _in_zone(self.start, zone), "end": _in_zone(self.end, zone)}
        when = self._when(bounds["start"])
        try:
            return Schedule(name, actor, when, **bounds, **policy)
        except DeclarationError as error:
            raise InvalidRequest([("schedule", str(error))]) from None

    def _zone(self) -> ZoneInfo:
        try:
            return zone_named(self.timezone)
        except ValueError as error:
            raise InvalidRequest([("timezone", f"{error}; for example: Europe/Berlin")]) from None

    def _when(self, start: datetime | None) -> When:
        given = [name for name in ("cron", "every", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InvalidRequest([("schedule", f"must have one of cron, every and at, and has {found}")])
        try:
            if self.cron is not None:
                return Cron(self.cron, self.timezone)
            if self.every is not None:
                return Every(**self.every.model_dump(), timezone=self.timezone, start=start)
            assert self.at is not None
            return Once(self.at, self.timezone)
        except DeclarationError as error:
            raise InvalidRequest([(given[0], str(error))]) from None


class ScheduleDocument(Plan):
    """A schedule."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "weekly-report",
                    "type": "email.send",
                    "payload": {"to": "ada@example.org", "subject": "Report", "template_id": "notification"},
                    "cron": "30 7 * * 1",
                    "timezone": "Europe/Berlin",
                }
            ]
        }
    )

    name: Annotated[str, Field(pattern=f"^{NAME}$", description="Tells schedules apart, for ever.")]
    type: Annotated[str, Field(description="The actor's name, or an alias of it.")]
    payload: Annotated[dict[str, Any], Field(description="What the actor is called with.")] = {}
    missed: Annotated[Missed, Field(description="Which due times that passed without a scheduler get a job.")] = "once"
    window: Annotated[
        float | str | None, Field(description="Seconds, or text such as 1h: what was missed longer ago gets none.")
    ] = None
    most: Annotated[int, Field(strict=True, description="How many missed due times get a job, with `missed: all`.")] = (
        100
    )
    overlap: Annotated[Overlap, Field(description="Whether one is due while the job before has not ended.")] = "allow"
    jitter: Annotated[float | str, Field(description="Seconds, or text: each job waits for up to so long.")] = 0
    pause_after_failures: Annotated[int | None, Field(strict=True)] = None
    tenant: Annotated[str | None, Field(min_length=1, max_length=256, description="For whom its jobs work.")] = None

    @field_validator("tenant")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("must be printable text")
        return value

    def to_schedule(self, version: int = 0) -> Schedule:
        """Return the schedule. Raises InvalidRequest."""
        return self.schedule(
            self.name,
            self.type,
            payload=self.payload,
            missed=self.missed,
            window=self.window,
            most=self.most,
            overlap=self.overlap,
            jitter=self.jitter,
            pause_after_failures=self.pause_after_failures,
            tenant=self.tenant,
            version=version,
        )


def document_of(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule of code in the words of a document, without the members that say nothing."""
    when = schedule.when
    plan: dict[str, Any]
    match when:
        case Cron():
            plan = {"cron": when.expression}
        case Every():
            units = {unit: getattr(when, unit) for unit in Interval.model_fields if getattr(when, unit)}
            plan = {"every": units, "start": when.start}
        case Once():
            plan = {"at": when.at}
        case _:
            plan = {}
    plan |= {name: value for name in ("start", "end") if (value := getattr(schedule, name)) is not None}
    own = ("missed", "window", "most", "overlap", "jitter", "pause_after_failures", "tenant")
    policy = {name: getattr(schedule, name) for name in own}
    return {
        "name": schedule.name,
        "type": schedule.actor,
        "payload": dict(schedule.payload),
        **{name: value for name, value in plan.items() if value is not None},
        "timezone": schedule.timezone,
        **policy,
    }


def _in_zone(time: datetime | None, zone: ZoneInfo) -> datetime | None:
    return time if time is None or time.tzinfo else time.replace(tzinfo=zone)
