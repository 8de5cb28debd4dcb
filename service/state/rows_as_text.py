"""Rows in the text format of COPY: one line each, fields divided by tabs, `\\N` for null."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from service.state.event import Event, to_text
from service.state.folding import JobRow
from service.state.states import is_final

NULL = "\\N"

JOB_COLUMNS = (
    *("job_id", "created_at", "sequence", "last_sequence", "type", "queue", "state", "attempt", "changed_at"),
    *("started_at", "completed_at", "run_at", "worker", "reason", "skipped", "priority", "tenant", "key", "parent_id"),
    *("result", "error", "payload", "message"),
)
EVENT_COLUMNS = (
    *("created_at", "job_id", "sequence", "copy", "kind", "at", "queue", "state", "attempt", "started_at", "run_at"),
    *("worker", "reason", "key", "priority", "error", "data"),
)


def job_line(row: JobRow) -> str:
    """Return a job as a line of JOB_COLUMNS. Of one that is stored, what is null here stays as it is."""
    latest, sent = row.latest, row.sent
    if latest is None:
        state = f"{NULL}\t{row.last_sequence}\t{NULL}\t{NULL}\t{NULL}\t{row.attempt}\t{NULL}"
        rest = f"{NULL}\t{NULL}\t{_text(row.worker)}\t{NULL}\t{NULL}"
        outcome = f"{NULL}\t{NULL}"
    else:
        at = stamp(latest.at)
        state = (
            f"{row.sequence}\t{row.last_sequence}\t{_text(latest.type)}\t{_text(latest.queue)}\t{latest.state}"
            f"\t{row.attempt}\t{at}"
        )
        ended = at if latest.state is not None and is_final(latest.state) else NULL
        skipped = "t" if latest.skipped else "f"
        rest = f"{ended}\t{_stamp(latest.run_at)}\t{_text(row.worker)}\t{_text(latest.reason)}\t{skipped}"
        outcome = f"{_text(latest.result)}\t{_text(latest.error)}"
    priority = NULL if row.priority is None else row.priority
    return (
        f"{row.job_id}\t{stamp(row.created)}\t{state}\t{_stamp(row.started)}\t{rest}\t{priority}\t{_text(row.tenant)}"
        f"\t{_text(row.key)}\t{(sent and sent.parent_id) or NULL}\t{outcome}\t{_text(sent and sent.payload)}"
        f"\t{_bytes(sent and sent.message)}\n"
    )


def event_line(row: JobRow, event: Event) -> str:
    """Return an event of a job as a line of EVENT_COLUMNS."""
    priority = NULL if event.priority is None else event.priority
    error = NULL if event.error is None else _text(_brief(event.error))
    return (
        f"{stamp(row.created)}\t{event.job_id}\t{event.sequence}\t{event.copy}\t{event.kind}\t{stamp(event.at)}"
        f"\t{_text(event.queue)}\t{event.state or NULL}\t{event.attempt}\t{_stamp(event.started)}"
        f"\t{_stamp(event.run_at)}\t{_text(event.worker)}\t{_text(event.reason)}\t{_text(event.key)}\t{priority}\t{error}\t{_text(event.data)}\n"
    )


def _brief(error: str) -> str:
    from pydantic_core import from_json

    known = from_json(error)
    return to_text({name: str(known.get(name, "")) for name in ("type", "message")})


@lru_cache(maxsize=4096)
def stamp(milliseconds: int) -> str:
    """Return a time as PostgreSQL reads it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def _stamp(milliseconds: int | None) -> str:
    return NULL if milliseconds is None else stamp(milliseconds)


def _text(value: str | None) -> str:
    if value is None:
        return NULL
    if value.isprintable() and "\\" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _bytes(value: bytes | None) -> str:
    return NULL if value is None else f"\\\\x{value.hex()}"


def together(lines: Iterable[str]) -> bytes:
    """Return lines as one piece to send."""
    return "".join(lines).encode()
