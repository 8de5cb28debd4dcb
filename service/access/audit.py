"""The log of operators' acts: who did what to how many, and why.

A line is written before the act, and completed after it. Where it can't be written nothing is done; where it can't be
completed (the process died, PostgreSQL went away) it stays without an end, and so says that nobody knows how far the
act came. Lines are never changed otherwise. The projector removes old ones where CALLBOARD_AUDIT_DAYS says so.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, func, insert, select, update

from service.access.tables import audit
from service.broker.outcome import storable, storable_json
from service.errors import without_middle
from service.state.database import reaching

WRITE_SECONDS = 5.0
READ_SECONDS = 5.0
MOST_CHARACTERS = 1000
MOST_FILTER_CHARACTERS = 4000
MOST_LINES = 200


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody is about to do. `who` is a key's name, or `cli:` and a user; `what` names route or command."""

    who: str
    what: str
    request_id: str
    why: str = ""
    key_id: str | None = None
    tenant: str | None = None
    filter: Any = None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line as it is read. Without `ended_at` nobody knows how the act ended."""

    id: int
    begun_at: datetime
    ended_at: datetime | None
    who: str
    key_id: str | None
    tenant: str | None
    what: str
    filter: Any
    count: int | None
    why: str
    request_id: str
    status: int | None


class AuditLog:
    """The log of one database. Every method raises HistoryUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, act: Act) -> int:
        """Write down what is about to be done, and return the line's number."""
        row = {
            "who": _text(act.who),
            "key_id": act.key_id,
            "tenant": act.tenant,
            "what": _text(act.what),
            "filter": _filter(act.filter),
            "why": _text(act.why),
            "request_id": _text(act.request_id),
        }
        with reaching(self._engine, WRITE_SECONDS), self._engine.begin() as connection:
            return int(connection.execute(insert(audit).values(**row).returning(audit.c.id)).scalar_one())

    def end(self, number: int, status: int, *, count: int | None = None, filter: Any = None) -> None:
        """Complete a line. `filter` takes the place of the one that it began with, where it is given."""
        known = {} if filter is None else {"filter": _filter(filter)}
        values = {"ended_at": func.clock_timestamp(), "status": status, "count": count, **known}
        change = update(audit).where(audit.c.id == number, audit.c.ended_at.is_(None)).values(**values)
        with reaching(self._engine, WRITE_SECONDS), self._engine.begin() as connection:
            connection.execute(change)

    def page(self, *, before: int | None = None, limit: int = 50, who: str | None = None) -> list[AuditLine]:
        """Return up to `limit` lines, the newest first; `before` is the number of the last one of the page before."""
        asked = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            asked = asked.where(audit.c.id < before)
        if who is not None:
            asked = asked.where(audit.c.who == who)
        with reaching(self._engine, READ_SECONDS), self._engine.connect() as connection:
            return [AuditLine(**row) for row in connection.execute(asked).mappings()]


def _text(text: str) -> str:
    return storable(without_middle(text, MOST_CHARACTERS))


def _filter(given: Any) -> Any:
    known: Any = None
    try:
        known = storable_json(given)
        is_kept = len(json.dumps(known, allow_nan=False)) <= MOST_FILTER_CHARACTERS
    except (ValueError, TypeError, RecursionError):
        is_kept = False
    return known if is_kept else {"left_out": "the filter can't be kept: it is too long, or has no JSON form"}
