"""The table of schedules that were made at run time."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import Engine, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from service.errors import InvalidRequest
from service.schedules.document import ScheduleDocument
from service.schedules.tables import runs, schedules, states
from service.state.database import reaching

LOOK_UP_SECONDS = 2.5


class StoredSchedule(NamedTuple):
    """A row. `document` is as it was stored, maybe by another release."""

    name: str
    version: int
    document: dict[str, Any]
    created_at: datetime
    changed_at: datetime

    def read(self) -> ScheduleDocument:
        """Raises InvalidRequest for what this release can't read."""
        try:
            return ScheduleDocument.model_validate(self.document)
        except ValidationError as error:
            problems = [(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors(include_url=False)]
            raise InvalidRequest(problems) from None


class StoredSchedules:
    """Reads and writes the table. Every method raises HistoryUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> Mapping[str, StoredSchedule]:
        """Return all rows by their names."""
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.connect() as connection:
            rows = connection.execute(select(*_COLUMNS).order_by(schedules.c.name))
            return {row.name: StoredSchedule(*row) for row in rows}

    def get(self, name: str) -> StoredSchedule | None:
        """Return one row."""
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.connect() as connection:
            row = connection.execute(select(*_COLUMNS).where(schedules.c.name == name)).one_or_none()
        return None if row is None else StoredSchedule(*row)

    def create(self, document: ScheduleDocument, version: int) -> bool:
        """Store a new row. Returns whether the name was free."""
        values = {"version": version, **_values(document)}
        added = insert(schedules).values(values).on_conflict_do_nothing().returning(schedules.c.name)
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.begin() as connection:
            return connection.execute(added).one_or_none() is not None

    def replace(self, document: ScheduleDocument, before: int, version: int) -> bool:
        """Store another document in the row that has the version `before`. Returns whether it still had."""
        change = (
            update(schedules)
            .where(schedules.c.name == document.name, schedules.c.version == before)
            .values(version=version, changed_at=func.now(), **_values(document))
        )
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.begin() as connection:
            return connection.execute(change).rowcount == 1

    def delete(self, name: str) -> bool:
        """Remove a row, and what is kept of its jobs. Returns whether it was there."""
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.begin() as connection:
            was_there = connection.execute(delete(schedules).where(schedules.c.name == name)).rowcount == 1
            if was_there:
                connection.execute(delete(states).where(states.c.name == name))
                connection.execute(delete(runs).where(runs.c.name == name))
            return was_there


_COLUMNS = (
    schedules.c.name,
    schedules.c.version,
    schedules.c.document,
    schedules.c.created_at,
    schedules.c.changed_at,
)


def _values(document: ScheduleDocument) -> dict[str, Any]:
    told = document.model_dump(mode="json", exclude_unset=True)
    return {"name": document.name, "tenant": document.tenant, "document": told}
