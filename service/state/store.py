"""Stores events: one transaction, after which a job's row is what its events say, and each is in the timeline once.

Only the projector that holds the lock calls it, so nothing changes between its look and its writing.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import psycopg
from sqlalchemy import Connection, text

from service.state.event import Event
from service.state.folding import JobRow, add, made_anew
from service.state.rows_as_text import EVENT_COLUMNS, JOB_COLUMNS, event_line, job_line, stamp, together
from service.state.states import State

DAY_MS = 24 * 3600 * 1000
#: A job's id is looked for among the jobs of so many days first; one that was created before, in all.
RECENT_DAYS = 3

logger = logging.getLogger(__name__)

_FIELDS = (
    "job_id::text, (extract(epoch FROM created_at) * 1000)::bigint, last_sequence, sequence, state, attempt, "
    "(extract(epoch FROM started_at) * 1000)::bigint, worker, message IS NOT NULL"
)
_RECENT = f"SELECT {_FIELDS} FROM callboard_jobs WHERE job_id = ANY (%s::uuid[]) AND created_at BETWEEN %s AND %s"
_ANY = f"SELECT {_FIELDS} FROM callboard_jobs WHERE job_id = ANY (%s::uuid[])"
_TOLD = (
    "SELECT job_id::text, copy, sequence, kind, queue, (extract(epoch FROM at) * 1000)::bigint, "
    "(extract(epoch FROM created_at) * 1000)::bigint, state, attempt, "
    "(extract(epoch FROM started_at) * 1000)::bigint, worker, priority, key "
    "FROM callboard_events WHERE created_at = ANY (%s::timestamptz[]) AND job_id = ANY (%s::uuid[])"
)
_STAGE = (
    "CREATE TEMP TABLE IF NOT EXISTS callboard_staged ON COMMIT DELETE ROWS "
    "AS SELECT * FROM callboard_jobs WITH NO DATA"
)
_OF_STATE = (
    *("sequence", "type", "queue", "state", "changed_at", "completed_at", "run_at", "reason", "skipped"),
    *("result", "error"),
)
_ALWAYS = ("last_sequence", "attempt", "started_at", "worker")
_WHERE_GIVEN = ("priority", "tenant", "key", "parent_id", "payload", "message")
_CHANGES = ", ".join(
    [
        *(f"{name} = CASE WHEN s.sequence IS NULL THEN j.{name} ELSE s.{name} END" for name in _OF_STATE),
        *(f"{name} = s.{name}" for name in _ALWAYS),
        *(f"{name} = COALESCE(s.{name}, j.{name})" for name in _WHERE_GIVEN),
    ]
)
_UPDATE = (
    f"UPDATE callboard_jobs j SET {_CHANGES} FROM callboard_staged s "
    "WHERE j.created_at = s.created_at AND j.job_id = s.job_id"
)
#: A text that is too long for its index, and JSON that is nested too deeply: refused again however often it is tried.
_TOO_MUCH = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)
#: The staged rows have no statistics: anything but a look-up of each by its key could read whole partitions.
_PLAN = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off"


def store(connection: Connection, events: Sequence[Event]) -> list[Event]:
    """Store events and commit. Returns those that changed their job's state, in the order in which they happened.

    What the database refuses of one job does not hold up others: it is logged and dropped.
    """
    if not events:
        return []  # nobody could read what was in the stream
    try:
        applied = _store(connection, events)
        connection.commit()
    except (psycopg.DataError, *_TOO_MUCH) as error:
        connection.rollback()
        jobs = sorted({event.job_id for event in events})
        if len(jobs) == 1:
            logger.error("The events of a job can't be stored and are dropped: %s", error, extra={"job_id": jobs[0]})
            return []
        half = set(jobs[: len(jobs) // 2])
        first = store(connection, [event for event in events if event.job_id in half])
        return first + store(connection, [event for event in events if event.job_id not in half])
    return applied


def _store(connection: Connection, events: Sequence[Event]) -> list[Event]:
    connection.execute(text(_PLAN))  # begins the transaction
    cursor = cast("Any", connection.connection.driver_connection).cursor()
    by_job: defaultdict[str, dict[tuple[int, int], Event]] = defaultdict(dict)
    for event in events:
        by_job[event.job_id][event.number] = event
    rows = _look_up(cursor, by_job)
    told = _told(cursor, [(row, by_job[job_id]) for job_id, row in rows.items()])
    changed: list[JobRow] = []
    lines: list[str] = []
    for job_id, numbered in by_job.items():
        row = rows.get(job_id)
        own = [numbered[number] for number in sorted(numbered)]
        if row is None:
            row = JobRow(job_id, own[0].created)
            add(row, own)
        elif own[0].sequence > row.last_sequence:
            add(row, own)
        else:
            row, own = _with_late(row, own, told[job_id])
        if row.state is None or not own:
            continue  # what is said of a job that nobody knows, and what was told before
        changed.append(row)
        lines += [event_line(row, event) for event in own]
    _write(cursor, changed, lines)
    return sorted((event for row in changed for event in row.applied), key=lambda event: event.sequence)


def _with_late(row: JobRow, own: list[Event], told: list[Event]) -> tuple[JobRow, list[Event]]:
    """The row with events of which some may have been told before, and those of them that were not."""
    known = {event.number for event in told}
    own = [event for event in own if event.number not in known]
    if not any(event.sequence <= row.last_sequence for event in own):
        add(row, own)
    elif any(event.sequence == row.sequence for event in told):
        row = made_anew(row, told, own)
    else:
        # A row of the release before, whose events nobody has: it takes what is newer.
        own = [event for event in own if event.sequence > row.last_sequence]
        add(row, own)
    return row, own


def _look_up(cursor: Any, by_job: dict[str, dict[tuple[int, int], Event]]) -> dict[str, JobRow]:
    newest = max(event.created for events in by_job.values() for event in events.values())
    recent = newest - RECENT_DAYS * DAY_MS
    found = cursor.execute(_RECENT, (list(by_job), stamp(max(recent, 0)), stamp(newest))).fetchall()
    rows = _rows(found)
    # A job is told of first by its send, under a new id. All else may be older, and so is looked for everywhere.
    elsewhere = [
        job_id
        for job_id, events in by_job.items()
        if job_id not in rows
        and (
            any(event.copy or event.created < recent for event in events.values())
            or not any(event.kind == "sent" for event in events.values())
        )
    ]
    if elsewhere:
        rows |= _rows(cursor.execute(_ANY, (elsewhere,)).fetchall())
    return rows


def _rows(found: Iterable[tuple[Any, ...]]) -> dict[str, JobRow]:
    rows: dict[str, JobRow] = {}
    for job_id, created, last, sequence, state, attempt, started, worker, has_message in found:
        if job_id not in rows or rows[job_id].last_sequence < last:
            rows[job_id] = JobRow(
                job_id, created, last, sequence, State(state), attempt, started, worker, has_message, is_stored=True
            )
    return rows


def _told(cursor: Any, looked_up: list[tuple[JobRow, dict[tuple[int, int], Event]]]) -> dict[str, list[Event]]:
    """The stored events of those jobs of which something may be told again, or too late."""
    again = [row for row, events in looked_up if min(events)[0] <= row.last_sequence]
    told: dict[str, list[Event]] = {row.job_id: [] for row in again}
    if again:
        stamps = list({stamp(row.created) for row in again})
        for job_id, copy, sequence, kind, queue, at, created, state, attempt, *rest in cursor.execute(
            _TOLD, (stamps, list(told))
        ):
            started, worker, priority, key = rest
            known = State(state) if state else None
            event = Event(job_id, copy, sequence, kind, queue, at, created, known, "", attempt, started)
            event.worker, event.priority, event.key = worker, priority, key
            if kind in ("sent", "replayed"):
                event.message = b""  # it is in the row, and a late one of less weight does not replace it
            told[job_id].append(event)
    return told


def _write(cursor: Any, rows: list[JobRow], event_lines: list[str]) -> None:
    new = [job_line(row) for row in rows if not row.is_stored]
    stored = [job_line(row) for row in rows if row.is_stored]
    if new:
        _copy(cursor, "callboard_jobs", JOB_COLUMNS, new)
    if stored:
        cursor.execute(_STAGE)
        _copy(cursor, "callboard_staged", JOB_COLUMNS, stored)
        cursor.execute(_UPDATE)
    if event_lines:
        _copy(cursor, "callboard_events", EVENT_COLUMNS, event_lines)


def _copy(cursor: Any, table: str, columns: tuple[str, ...], lines: list[str]) -> None:
    with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
        copy.write(together(lines))
