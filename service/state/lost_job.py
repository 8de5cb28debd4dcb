"""The pure part of a rebuild: what a job that Redis has lost is there again, by what its row says."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dramatiq.actor import Actor

from service.broker.messages import copy_message, decode_message, encode_message
from service.broker.once import DEFAULT_TTL_SECONDS
from service.broker.outcome import Reason
from service.broker.restoring import Lost, Taken
from service.broker.rows import DEFAULT_MAX_DELIVERIES, DEFAULT_PRIORITY, unique_of
from service.errors import UnreadableMessage
from service.state.states import State

UNKNOWN_ERROR = {"type": "Unknown", "message": "The database does not say why", "traceback": ""}

Row = Mapping[Any, Any]


def lost_job(row: Row, actor: Actor[..., Any] | None, rank: int, now_ms: int) -> Lost:
    """Return a job that has not ended as it is to come back: with the runs behind it that have failed.

    One that ran when it was lost runs again, with no attempt counted for that. `row` must have a message.
    """
    due = None if row["run_at"] is None or row["state"] == State.RUNNING else ms(row["run_at"])
    due = due if due is not None and due > now_ms else None
    event = _event(row, _state(row, due))
    if due is not None:
        event["run_at"] = str(due)
    lost = _lost(row, actor, rank, due, event)
    message, unique, ends = _message(row, lost.attempt, actor, now_ms)
    return lost._replace(message=message, unique=unique, unique_ends=ends)


def lost_letter(row: Row, actor: Actor[..., Any] | None, rank: int) -> Lost:
    """Return a dead job as the dead letter that it was, without the log of its attempts. `row` must have a message."""
    reason = row["reason"] if row["reason"] in set(Reason) else Reason.FAILED.value
    error = json.dumps({**UNKNOWN_ERROR, **(row["error"] or {})})
    event = {**_event(row, State.DEAD), "reason": reason, "error": error}
    return _lost(row, actor, rank, ms(row["completed_at"] or row["changed_at"]), event)


def taken_until(row: Row, actor: Actor[..., Any] | None) -> int:
    """Return the ms until which a job that has ended keeps its key taken; 0 where it does not."""
    options: dict[str, Any] = actor.options if actor else {}
    keeps = row["state"] == State.SUCCEEDED or (row["state"] == State.DEAD and options.get("remember_failure"))
    if not keeps or row["skipped"] or row["completed_at"] is None:
        return 0
    return ms(row["completed_at"]) + int(options.get("idempotency_ttl", DEFAULT_TTL_SECONDS) * 1000)


def taken_key(row: Row, actor: Actor[..., Any] | None) -> Taken:
    """Return a key with the record of the job that keeps it taken."""
    state, until_ms = State(row["state"]), taken_until(row, actor)
    if state is State.SUCCEEDED:
        word, outcome = "done", {"result": json.dumps(row["result"])}
    else:
        error = json.dumps({**UNKNOWN_ERROR, **(row["error"] or {})})
        word, outcome = "failed", {"reason": row["reason"] or Reason.FAILED.value, "error": error}
    event = json.dumps({**_event(row, state), **outcome})
    return Taken(row["key"], until_ms, f"{word} {until_ms} {row['job_id']} {event}")


def next_attempt(state: State, attempt: int) -> int:
    """Return the number of a lost job's next run: only a failure that was to be retried counts."""
    return attempt + 1 if state is State.RETRYING else max(attempt, 1)


def ms(time: datetime) -> int:
    """Return a time in ms since 1970."""
    return round(time.timestamp() * 1000)


def _state(row: Row, due_ms: int | None) -> State:
    if row["state"] == State.RETRYING:
        return State.RETRYING
    return State.PENDING if due_ms is None else State.SCHEDULED


def _event(row: Row, state: State) -> dict[str, str]:
    known = {
        "state": state.value,
        "type": row["type"],
        "attempt": str(row["attempt"]),
        "created_at": str(ms(row["created_at"])),
    }
    if row["started_at"] is not None:
        known["started_at"] = str(ms(row["started_at"]))
    if row["tenant"] is not None:
        known["tenant"] = row["tenant"]
    return known


def _lost(row: Row, actor: Actor[..., Any] | None, rank: int, at_ms: int | None, event: dict[str, str]) -> Lost:
    priority = row["priority"]
    if priority is None:
        priority = actor.priority if actor else DEFAULT_PRIORITY
    most = actor.options.get("max_deliveries", DEFAULT_MAX_DELIVERIES) if actor else DEFAULT_MAX_DELIVERIES
    return Lost(
        entry=str(row["job_id"]),
        sequence=row["last_sequence"],
        is_dead=row["state"] == State.DEAD,
        rank=rank,
        priority=min(max(priority, 0), 9),
        at_ms=at_ms,
        created_ms=ms(row["created_at"]),
        attempt=next_attempt(State(row["state"]), row["attempt"]),
        max_deliveries=most,
        actor=row["type"],
        key=row["key"] or "",
        event=json.dumps(event),
        message=bytes(row["message"]),
    )


def _message(row: Row, attempt: int, actor: Actor[..., Any] | None, now_ms: int) -> tuple[bytes, str, str]:
    """The message, with what a retry adds to it, its unique key, and until when that is taken."""
    data = bytes(row["message"])
    try:
        message = decode_message(data)
        unique: object = message.options.get("unique_key")
        if attempt > 1:
            error: dict[str, str] = row["error"] or {}
            options: dict[str, Any] = {"retries": attempt - 1, "traceback": error.get("traceback", "")}
            data = encode_message(copy_message(message, options=options))
    except (UnreadableMessage, AttributeError, TypeError, ValueError):
        return data, "", "0"  # of another encoder, or of a newer release: it goes back as it is
    if not isinstance(unique, str) or not unique.isprintable():
        return data, "", "0"
    meant = unique_of(unique, actor)
    if not meant.window_ms:
        return data, unique, "0"
    until_ms = ms(row["created_at"]) + meant.window_ms
    ends = f"{until_ms} ended" if "ended" in meant.states else str(until_ms)
    return (data, unique, ends) if until_ms > now_ms else (data, "", "0")
