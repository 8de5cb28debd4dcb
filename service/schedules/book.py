"""What people do with schedules, over the API and on the command line: look, make, change, pause, run."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from dramatiq.errors import ActorNotFound
from pydantic import ValidationError
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.errors import (
    Conflict,
    HistoryUnavailable,
    InvalidRequest,
    UnknownJobType,
    UnknownSchedule,
)
from service.schedules.clock import clock_of
from service.schedules.decide import first_state
from service.schedules.document import ScheduleDocument, document_of
from service.schedules.due import next_times
from service.schedules.entry import Entry
from service.schedules.firing import Firing
from service.schedules.ledger import Ledger
from service.schedules.schedule import Schedule
from service.schedules.state import Paused, Run, ScheduleState, alive
from service.schedules.stored import StoredSchedule, StoredSchedules

MOST_STORED_RUNS = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """A schedule as it is now. `schedule` is None where this release, or this process, can't read it: see `problem`."""

    name: str
    is_code: bool
    document: Mapping[str, Any]
    state: ScheduleState | None
    schedule: Schedule | None
    next_times: Sequence[datetime]
    is_due_again: bool
    problem: str | None = None

    @property
    def source(self) -> Literal["code", "stored"]:
        return "code" if self.is_code else "stored"

    @property
    def standing(self) -> Literal["active", "paused", "ended", "broken"]:
        """Whether it will have jobs, and why not."""
        if self.schedule is None:
            return "broken"
        if self.state and self.state.paused:
            return "paused"
        return "active" if self.is_due_again else "ended"


class ScheduleBook:
    """The schedules of code and of the database. Methods raise BrokerUnavailable and HistoryUnavailable."""

    def __init__(self, broker: RedisBroker, code: Sequence[Schedule], engine: Engine | None) -> None:
        self._broker = broker
        self._code = {schedule.name: schedule for schedule in code}
        self._stored = None if engine is None else StoredSchedules(engine)
        self._ledger = None if engine is None else Ledger(engine)
        self._firing = Firing(broker, self._ledger)
        self._states = self._firing.states
        self._now = clock_of(broker)
        self._tenant: str | None = None

    def seen_by(self, tenant: str | None) -> "ScheduleBook":
        """Return the book as a tenant sees it: schedules of others are not there. None for who works for all."""
        seen = copy(self)
        seen._tenant = tenant
        return seen

    def pages(self, count: int) -> list[Page]:
        """Return all schedules in the order of their names, each with its next `count` due times."""
        rows: Mapping[str, StoredSchedule] = self._stored.all() if self._stored else {}
        names = sorted(name for name in {*self._code, *rows} if self._is_there(name, rows.get(name)))
        states = self._states.read_many(names)
        now = self._now()
        return [self._page(name, rows.get(name), states[name].state, now, count) for name in names]

    def page(self, name: str, count: int) -> Page:
        """Return one schedule. Raises UnknownSchedule."""
        row = self._row(name)
        return self._page(name, row, self._states.read(name).state, self._now(), count)

    def runs(self, name: str) -> list[dict[str, Any]]:
        """Return its newest jobs, as the database knows them."""
        return self._ledger.runs_of(name, MOST_STORED_RUNS) if self._ledger else []

    def preview(self, schedule: Schedule, count: int, after: datetime | None = None) -> list[datetime]:
        """Return the next due times that a schedule would have."""
        return next_times(schedule, after or self._now(), count)

    def create(self, document: ScheduleDocument) -> Page:
        """Store a new schedule. Raises Conflict, InvalidRequest, UnknownJobType, PayloadError."""
        if document.name in self._code:
            raise Conflict(f"The schedule {document.name!r} is in code; give this one another name")
        document = self._of_its_tenant(document)
        now = self._now()
        version = int(now.timestamp() * 1000)
        schedule = self._checked(document, version, now)
        if not self._table.create(document, version):
            raise Conflict(f"There is a schedule {document.name!r} already; PUT replaces it")
        self._change(document.name, lambda _: first_state(schedule, now))
        logger.info("A schedule is made", extra={"schedule": document.name})
        return self.page(document.name, 10)

    def replace(self, name: str, document: ScheduleDocument) -> Page:
        """Put another schedule in the place of a stored one. Raises as `create`, and UnknownSchedule."""
        return self._replace(self._editable(name), document)

    def patch(self, name: str, changes: Mapping[str, Any]) -> Page:
        """Change members of a stored schedule; null takes one out. Raises as `replace`."""
        row = self._editable(name)
        merged = {key: value for key, value in {**row.document, **changes}.items() if value is not None}
        if given := {"cron", "every", "at"} & {key for key, value in changes.items() if value is not None}:
            # One kind takes the place of another.
            merged = {key: value for key, value in merged.items() if key not in {"cron", "every", "at"} - given}
        try:
            document = ScheduleDocument.model_validate(merged)
        except ValidationError as error:
            problems = [(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors(include_url=False)]
            raise InvalidRequest(problems) from None
        return self._replace(row, document)

    def delete(self, name: str) -> None:
        """Remove a stored schedule; what it has sent goes on. Raises UnknownSchedule, Conflict."""
        row = self._editable(name)
        now = self._now()
        version = _next_version(row.version, now)
        if not self._table.delete(name):
            raise UnknownSchedule(name)
        gone = ScheduleState(now, version=version, is_deleted=True).changed(now)
        self._states.change(name, lambda _: gone)
        logger.info("A schedule is deleted", extra={"schedule": name})

    def pause(self, name: str, *, by: str, why: str) -> Page:
        """Let no due time have a job until `resume`. A schedule that is paused stays so, as it was."""
        row = self._row(name)
        schedule, now = self._schedule_of(name, row), self._now()

        def paused(state: ScheduleState | None) -> ScheduleState | None:
            state = alive(state) or first_state(schedule, now)
            return None if state.paused else state.changed(now, paused=Paused(by, why, now))

        self._change(name, paused)
        logger.info("A schedule is paused", extra={"schedule": name, "by": by, "why": why})
        return self.page(name, 10)

    def resume(self, name: str, *, by: str) -> Page:
        """Let due times from now on have their jobs. What was due meanwhile was not missed."""
        row = self._row(name)
        schedule, now = self._schedule_of(name, row), self._now()

        def resumed(state: ScheduleState | None) -> ScheduleState | None:
            state = alive(state) or first_state(schedule, now)
            if not state.paused:
                return None
            return state.changed(now, paused=None, failures=0, decided_until=max(state.decided_until, now))

        self._change(name, resumed)
        logger.info("A schedule is resumed", extra={"schedule": name, "by": by})
        return self.page(name, 10)

    def run_now(self, name: str, *, by: str) -> str:
        """Send one job now, also of a paused schedule, and beside one that has not ended. Returns its id."""
        row = self._row(name)
        entry = self._entry_of(self._schedule_of(name, row))
        now = self._now()
        run = Run(str(uuid4()), now, "by-hand")
        if problem := self._firing.run_now(entry, run, now):
            raise Conflict(problem)
        logger.info("A schedule is run by hand", extra={"schedule": name, "by": by, "job_id": run.job_id})
        return run.job_id

    def _replace(self, row: StoredSchedule, document: ScheduleDocument) -> Page:
        if document.name != row.name:
            raise InvalidRequest([("name", f"is {row.name!r} and can't be changed: it tells schedules apart")])
        document = self._of_its_tenant(document)
        now = self._now()
        version = _next_version(row.version, now)
        schedule = self._checked(document, version, now)
        if not self._table.replace(document, row.version, version):
            raise Conflict(f"The schedule {row.name!r} was changed meanwhile; read it again")

        def edited(state: ScheduleState | None) -> ScheduleState:
            state = state or first_state(schedule, now)
            is_same_plan = state.fingerprint == schedule.fingerprint
            until = state.decided_until if is_same_plan else max(state.decided_until, now)
            return state.changed(now, version=version, fingerprint=schedule.fingerprint, decided_until=until)

        self._change(row.name, edited)
        logger.info("A schedule is changed", extra={"schedule": row.name})
        return self.page(row.name, 10)

    def _change(self, name: str, change: Callable[[ScheduleState | None], ScheduleState | None]) -> None:
        state = self._states.change(name, change)
        if self._ledger and state:
            with suppress(HistoryUnavailable):  # a copy, which Redis needs only where it was emptied
                self._ledger.keep(name, state)

    def _checked(self, document: ScheduleDocument, version: int, now: datetime) -> Schedule:
        schedule = document.to_schedule(version)
        self._entry_of(schedule)
        if schedule.after(now) is None:
            raise InvalidRequest([("schedule", "is never due from now on")])
        return schedule

    def _entry_of(self, schedule: Schedule) -> Entry:
        try:
            self._broker.get_actor(schedule.actor)
        except ActorNotFound:
            raise UnknownJobType(schedule.actor, self._broker.known_types) from None
        return Entry.of(self._broker, schedule)

    def _row(self, name: str) -> StoredSchedule | None:
        """Return the row of a schedule, None for one in code. Raises UnknownSchedule."""
        if name in self._code:
            if not self._is_there(name, None):
                raise UnknownSchedule(name)
            return None
        row = self._stored.get(name) if self._stored and "\x00" not in name else None
        if row is None or not self._is_there(name, row):
            raise UnknownSchedule(name)
        return row

    def _is_there(self, name: str, row: StoredSchedule | None) -> bool:
        if self._tenant is None:
            return True
        tenant = row.document.get("tenant") if row and name not in self._code else self._code[name].tenant
        return tenant == self._tenant

    def _of_its_tenant(self, document: ScheduleDocument) -> ScheduleDocument:
        """Return a document as whoever made it may store it. Raises InvalidRequest."""
        if self._tenant is None:
            return document
        if document.tenant not in (None, self._tenant):
            raise InvalidRequest([("tenant", f"must be {self._tenant!r}, that of the key, or left out")])
        return ScheduleDocument.model_validate({**document.model_dump(exclude_unset=True), "tenant": self._tenant})

    def _editable(self, name: str) -> StoredSchedule:
        row = self._row(name)
        if row is None:
            raise Conflict(f"The schedule {name!r} is in code: change it there; here it can be paused, resumed and run")
        return row

    @property
    def _table(self) -> StoredSchedules:
        if self._stored is None:
            raise Conflict("Schedules are stored in PostgreSQL: set DATABASE_URL")
        return self._stored

    def _schedule_of(self, name: str, row: StoredSchedule | None) -> Schedule:
        return self._code[name] if row is None else row.read().to_schedule(row.version)

    def _page(
        self, name: str, row: StoredSchedule | None, state: ScheduleState | None, now: datetime, count: int
    ) -> Page:
        if name in self._code:
            row = None
        document = document_of(self._code[name]) if row is None else row.document
        state = alive(state)
        try:
            schedule = self._schedule_of(name, row)
        except InvalidRequest as error:
            return Page(name, row is None, document, state, None, [], False, str(error))
        times = next_times(schedule, now, max(count, 1))
        return Page(name, row is None, document, state, schedule, times[:count], bool(times))


def _next_version(before: int, now: datetime) -> int:
    return max(before + 1, int(now.timestamp() * 1000))
