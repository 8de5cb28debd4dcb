"""One job at one moment: what an event carries, what a row holds, and what the API shows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

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

    @classmethod
    def from_event(cls, fields: Mapping[str, str]) -> "Snapshot":
        """Read an event, or a job's hash, of the broker. Raises KeyError or ValueError for anything else."""
        state = State(fields["state"])
        return cls(
            job_id=UUID(fields["job_id"]),
            sequence=int(fields["seq"]),
            type=fields["type"],
            queue=fields["queue"],
            state=state,
            attempt=int(fields.get("attempt", 0)),
            created_at=_time(fields["created_at"]),
            changed_at=_time(fields["at"]),
            started_at=_time(fields["started_at"]) if "started_at" in fields else None,
            completed_at=_time(fields["completed_at"]) if "completed_at" in fields else None,
            result=json.loads(fields["result"]) if "result" in fields else None,
            # A job that succeeded in the end keeps no error of the attempts before.
            error=json.loads(fields["error"]) if "error" in fields and state is not State.SUCCEEDED else None,
        )


def _time(milliseconds: str) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
