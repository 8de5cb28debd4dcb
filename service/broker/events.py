"""What the entries of the event stream mean: written by the scripts and by settlements, read by the projector.

An entry has the fields `kind`, `at` (ms, the server's time), for started `worker`, and then one field for each job: its
entry in the queue, with

    sent      DELAY_MS CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR, with - for no delay
    started   - CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR
    waiting   as started: it has met the holder of its idempotency key
    replayed  as sent: the job was dead, and has a new life
    settled   JSON of texts: state, type, attempt, created_at, started_at (ms); result or error (JSON text); reason of a
              dead one; skipped, "true" for a duplicate
    progress, log   JSON: see note.lua. They change no state.

After ACTOR there may be a tab and an idempotency key.

The stream's own ids order the events of a job: they rise, also when the server's clock goes back.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import cast

from service.broker.delivery import Lease
from service.broker.messages import decode_fields
from service.errors import UnreadableMessage

NOTES = {"progress", "log"}
HEAD_FIELDS = {"kind", "at", "worker"}

#: The sequence of what Redis says now: newer than any event that was stored before it was asked.
NEWEST = 2**63 - 1


def settled(lease: Lease, state: str, actor: str, **more: str) -> str:
    """Build the event of a settlement."""
    # Written by hand: there is one for each job, and all but the actor's name and `more` are plain.
    rest = "".join(f', "{name}": {json.dumps(text)}' for name, text in more.items())
    return (
        f'{{"state": "{state}", "type": {_quoted(actor)}, "attempt": "{lease.attempt}", '
        f'"created_at": "{lease.created_ms}", "started_at": "{lease.started_ms}"{rest}}}'
    )


@cache
def _quoted(actor: str) -> str:
    return json.dumps(actor)


def sequence_of(entry_id: str) -> int:
    """Turn a stream's id into one number that orders events as the stream does. Fits into 63 bits until 2248."""
    milliseconds, _, number = entry_id.partition("-")
    return (int(milliseconds) << 20) | min(int(number), (1 << 20) - 1)


def read(entry_id: str, fields: Mapping[str, str], queue: str) -> Iterator[dict[str, str]]:
    """Read one entry as the events of its jobs, in the words of `Snapshot.from_event`. Raises KeyError, ValueError."""
    kind, at = fields["kind"], fields["at"]
    if kind in NOTES:
        return
    for entry, value in fields.items():
        if entry not in HEAD_FIELDS:
            known = json.loads(value) if kind == "settled" else _from_words(kind, value, at)
            yield _event(entry, sequence_of(entry_id), queue, at, known)


def live(
    job_id: str, queue: str, *, final: bytes | None, message: bytes | None, lease: bytes | None, due: float | None
) -> dict[str, str] | None:
    """Put together what Redis knows of a job, from its final event or from where its message is."""
    if final is not None:
        at, _, event = final.decode(errors="replace").partition(" ")
        return _event(job_id, NEWEST, queue, at, json.loads(event))
    if message is None:
        return None
    try:
        header = message.partition(b"\n")[0].partition(b"\t")[0]
        _, created, attempt, _, actor = header.decode(errors="replace").split(" ", 4)
        runs_before = int(attempt) - 1
    except ValueError:
        return None  # no header of ours: the next fetch makes a dead letter of it
    known = {"created_at": created, "attempt": attempt, "type": actor, **_tenant_in(message)}
    if lease is not None:
        started = lease.split(b" ")[1].decode()
        return _event(job_id, NEWEST, queue, started, {**known, "state": "running", "started_at": started})
    waits = "pending" if due is None else "scheduled"
    state = waits if attempt == "1" else "retrying"
    return _event(job_id, NEWEST, queue, created, {**known, "state": state, "attempt": str(runs_before)})


def _tenant_in(message: bytes) -> dict[str, str]:
    if b'"tenant"' not in message:
        return {}  # nearly all: no need to read them
    try:
        options = decode_fields(message.partition(b"\n")[2]).get("options")
    except UnreadableMessage:
        return {}
    tenant = cast("dict[str, object]", options).get("tenant") if isinstance(options, dict) else None
    return {"tenant": tenant} if isinstance(tenant, str) else {}


def _event(entry: str, sequence: int, queue: str, at: str, known: dict[str, str]) -> dict[str, str]:
    event = {"job_id": entry.partition("~")[0], "seq": str(sequence), "queue": queue, "at": at, **known}
    if known["state"] in ("succeeded", "dead", "cancelled"):
        event["completed_at"] = at
    return event


def _from_words(kind: str, value: str, at: str) -> dict[str, str]:
    delay, created, attempt, _, actor = value.partition("\t")[0].split(" ", 4)
    known = {"created_at": created, "attempt": attempt, "type": actor}
    if kind == "started":
        return {**known, "state": "running", "started_at": at}
    if kind == "waiting":
        return {**known, "state": "waiting", "attempt": str(int(attempt) - 1)}
    waits = {**known, "state": "pending" if delay == "-" else "scheduled", "attempt": "0"}
    return {**waits, "replayed": "1"} if kind == "replayed" else waits
