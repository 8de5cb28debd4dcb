"""One job at one moment: what an event carries, what a row holds, and what the API shows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from service.broker.outcome import storable_json
from service.broker.rows import JOB_ID
from service.state.states import State


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job after its event number `sequence`. Times are UTC. `error` has type, message and traceback."""

    job_id: UUID
    sequence: int
    type: str
    queue: str
    state: State
    attempt: int
    created_at: datetime
    changed_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    result: Any = None
    error: dict[str, str] | None = None
    #: Whether it ended as the first job of its idempotency key had, without a run of its own.
    skipped: bool = False
    #: Why it is dead: one of `Reason`.
    reason: str | None = None
    #: The time that it waits for.
    run_at: datetime | None = None
    #: Who runs it, or has run it last.
    worker: str | None = None
    #: 0 (first) to 9.
    priority: int | None = None
    tenant: str | None = None
    #: Its idempotency key.
    key: str | None = None
    #: The job that has sent it.
    parent_id: UUID | None = None
    #: Whether it runs, and is to end as cancelled. Only Redis knows.
    is_cancel_requested: bool = False

    def after(self, before: "Snapshot | None") -> "Snapshot":
        """Return this snapshot with what an older one knows better: the first start, the newest attempt, its origin."""
        if before is None:
            return self
        known = {name: getattr(self, name) for name in _OF_THE_SEND}
        known = {name: getattr(before, name) if value is None else value for name, value in known.items()}
        if before.state is State.DEAD and self.state is not State.DEAD:
            return replace(self, **known)  # replayed: a life of its own
        return replace(
            self,
            **known,
            worker=self.worker or before.worker,
            started_at=before.started_at or self.started_at,
            attempt=max(before.attempt, self.attempt),
        )

    @classmethod
    def from_event(cls, fields: Mapping[str, str]) -> "Snapshot":
        """Read an event, or a job's hash, of the broker. Raises KeyError or ValueError for anything else."""
        state = State(fields["state"])
        return cls(
            job_id=UUID(fields["job_id"]),
            sequence=_sequence(fields["seq"]),
            type=_name(fields["type"]),
            queue=_name(fields["queue"]),
            state=state,
            attempt=_count(fields.get("attempt", "0")),
            created_at=_time(fields["created_at"]),
            changed_at=_time(fields["at"]),
            started_at=_time(fields["started_at"]) if "started_at" in fields else None,
            completed_at=_time(fields["completed_at"]) if "completed_at" in fields else None,
            result=_json(fields["result"]) if "result" in fields else None,
            # A job that succeeded in the end keeps no error of the attempts before.
            error=_error(fields["error"]) if "error" in fields and state is not State.SUCCEEDED else None,
            skipped=fields.get("skipped") == "true",
            reason=fields.get("reason"),
            run_at=_time(fields["run_at"]) if "run_at" in fields else None,
            worker=fields.get("worker"),
            priority=_count(fields["priority"]) if "priority" in fields else None,
            tenant=fields.get("tenant"),
            key=fields.get("key"),
            parent_id=UUID(fields["parent_id"]) if JOB_ID.fullmatch(fields.get("parent_id", "")) else None,
            is_cancel_requested="cancel_requested" in fields,
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Snapshot":
        """Read a row of the table of jobs."""
        known: dict[str, Any] = {name: row[name] for name in COLUMNS}
        known["state"] = State(row["state"])
        return cls(**known)


#: The columns that it is made of.
COLUMNS = tuple(field.name for field in fields_of(Snapshot) if field.name != "is_cancel_requested")
_OF_THE_SEND = ("priority", "tenant", "key", "parent_id")


# What follows refuses what the database would: one event that can't be stored would hold up all behind it.


def _time(milliseconds: str) -> datetime:
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{milliseconds} is no time: {error}") from None


def _count(number: str) -> int:
    count = int(number)
    if not 0 <= count < 2**31:
        raise ValueError(f"{number} is no count")
    return count


def _sequence(number: str) -> int:
    sequence = int(number)
    if not 0 <= sequence < 2**63:
        raise ValueError(f"{number} is no sequence")
    return sequence


def _name(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a name holds NUL")
    text.encode()  # raises for half of a surrogate pair
    return text


def _json(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    return storable_json(value)


def _error(text: str) -> dict[str, str]:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError("an error must be an object")
    return cast("dict[str, str]", value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
