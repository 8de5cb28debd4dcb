"""What has happened to many jobs since each was looked at last: one query for all who follow them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Engine, text

from service.state.database import reaching
from service.state.step import Mark, Step

WITHIN_SECONDS = 2.5
MOST_AT_ONCE = 5000


class Followed(NamedTuple):
    """A job, and what has been seen of it."""

    created_at: datetime
    job_id: UUID


_QUERY = text(
    """
    SELECT e.*
    FROM unnest(
        CAST(:created AS timestamptz[]), CAST(:ids AS uuid[]), CAST(:sequences AS bigint[]), CAST(:copies AS bigint[])
    ) AS seen (created_at, job_id, sequence, copy)
    JOIN callboard_events e
        ON e.created_at = seen.created_at AND e.job_id = seen.job_id
        AND (e.sequence, e.copy) > (seen.sequence, seen.copy)
    ORDER BY e.sequence, e.copy
    LIMIT :most
    """
)


def steps_since(engine: Engine, seen: Mapping[Followed, Mark]) -> dict[UUID, list[Step]]:
    """Return for each job what has happened since, in order: no more than MOST_AT_ONCE together.

    Raises HistoryUnavailable.
    """
    if not seen:
        return {}
    parameters: dict[str, Any] = {
        "created": [job.created_at for job in seen],
        "ids": [job.job_id for job in seen],
        "sequences": [mark.sequence for mark in seen.values()],
        "copies": [mark.copy for mark in seen.values()],
        "most": MOST_AT_ONCE,
    }
    found: dict[UUID, list[Step]] = {}
    with reaching(engine, WITHIN_SECONDS), engine.connect() as connection:
        for row in connection.execute(_QUERY, parameters):
            found.setdefault(row.job_id, []).append(Step.of(row))
    return found
