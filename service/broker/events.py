"""What the entries of the event stream mean: written by the scripts and by settlements, read by the projector.

An entry has the fields `kind`, `at` (ms, the server's time), for started `worker`, and then one field for each job: its
entry in the queue, with

    sent      DELAY_MS CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR\\tKEY\\tPRIORITY\\nMESSAGE, with - for no delay, KEY
              empty for none, and MESSAGE as Dramatiq encodes it. The release before wrote nothing after KEY, nor a tab
              before an empty one; it reads no further than to the first tab
    started   - CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR[\\tKEY]
    waiting   as started: it has met the holder of its idempotency key
    replayed  as sent: the job was dead, and has a new life
    settled   JSON of texts: state, type, attempt, created_at, started_at (ms); result or error (JSON text); reason of a
              dead one; skipped, "true" for a duplicate; delay_ms where the job waits for a time; of an end tenant,
              parent_id and key, where it has them, and priority; run_at (ms) and priority where an operator has changed
              them
    progress, log   CREATED_MS ATTEMPT JSON: see note.lua. They change no state. The release before wrote JSON alone
    deleted   the same, with who and why as JSON: its dead letter is gone

The stream's own ids order the events of a job: they rise, also when the server's clock goes back.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic_core import from_json

from service.broker.delivery import Lease

NOTES = {"progress", "log", "deleted"}
HEAD_FIELDS = {"kind", "at", "worker"}
#: Options of a message that say where it comes from.
ORIGIN = ("tenant", "parent_id")

#: The end of the year 9999: no later time can be shown or stored.
MOST_MS = 253_402_300_799_999
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


def ended(lease: Lease, state: str, actor: str, **more: str) -> str:
    """Build the event of a job's end: with what its message had, which is gone from Redis then."""
    if lease.priority is not None:
        more["priority"] = str(lease.priority)
    if lease.key:
        more["key"] = lease.key
    return settled(lease, state, actor, **more)


@cache
def _quoted(actor: str) -> str:
    return json.dumps(actor)


def sequence_of(entry_id: str) -> int:
    """Turn a stream's id into one number that orders events as the stream does. Fits into 63 bits until 2248.

    While the server's clock is behind what it was, all ids have the same milliseconds, and millions of numbers.
    """
    milliseconds, _, number = entry_id.partition("-")
    return (int(milliseconds) << 20) + int(number)


def read(entry_id: str, fields: Mapping[str, str], queue: str) -> Iterator[dict[str, str]]:
    """Read one entry as the events of its jobs, in the words of `Snapshot.from_event`. Raises KeyError, ValueError."""
    kind, at = fields["kind"], fields["at"]
    if kind in NOTES:
        return
    for entry, value in fields.items():
        if entry not in HEAD_FIELDS:
            yield _event(entry, sequence_of(entry_id), queue, at, known_of(kind, value.encode(), at)[0])


def known_of(kind: str, value: bytes, at: str) -> tuple[dict[str, str], bytes | None]:
    """Return what an event says of its job, and the job's message where the event has it. Raises ValueError."""
    if kind == "settled":
        try:
            return from_json(value), None
        except ValueError:
            return json.loads(value), None  # what that parser is too strict for, such as half of a surrogate pair
    head, line_break, message = value.partition(b"\n")
    words, _, more = head.decode(errors="replace").partition("\t")
    delay, created, attempt, _, actor = words.split(" ", 4)
    key, _, priority = more.partition("\t")
    known = {"created_at": created, "attempt": attempt, "type": actor}
    if key:
        known["key"] = key
    if kind == "started":
        return {**known, "state": "running", "started_at": at}, None
    if kind == "waiting":
        return {**known, "state": "waiting", "attempt": str(int(attempt) - 1)}, None
    known["attempt"] = "0"
    if priority:
        known["priority"] = priority
    if kind == "replayed":
        known["replayed"] = "1"
    if delay == "-":
        known["state"] = "pending"
    else:
        known["state"] = "scheduled"
        known["delay_ms"] = delay
    return known, message if line_break else None


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
        header, _, body = message.partition(b"\n")
        words, _, key = header.decode(errors="replace").partition("\t")
        score, created, attempt, _, actor = words.split(" ", 4)
        runs_before = int(attempt) - 1
        known = {"created_at": created, "attempt": attempt, "type": actor, "priority": str(int(score) >> 49)}
    except ValueError:
        return None  # no header of ours: the next fetch makes a dead letter of it
    if key:
        known["key"] = key
    known |= origin_of(body)
    if lease is not None:
        _, started, worker, *marks = lease.partition(b"\t")[0].decode(errors="replace").split(" ")
        running = {**known, "state": "running", "started_at": started, "worker": worker}
        if "cancelled" in marks:
            running["cancel_requested"] = "true"
        return _event(job_id, NEWEST, queue, started, running)
    waits = "pending" if due is None else "scheduled"
    if due is not None:
        known["run_at"] = f"{min(due, MOST_MS):.0f}"
    state = waits if attempt == "1" else "retrying"
    return _event(job_id, NEWEST, queue, created, {**known, "state": state, "attempt": str(runs_before)})


def origin_of(message: bytes) -> dict[str, str]:
    """Return for whom a message is (`tenant`) and the job that has sent it (`parent_id`), as far as it says so."""
    if not any(b'"%b"' % name.encode() in message for name in ORIGIN):
        return {}
    try:
        options = from_json(message)["options"]
        return {name: options[name] for name in ORIGIN if isinstance(options.get(name), str)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # of no format that this release reads


def _event(entry: str, sequence: int, queue: str, at: str, known: dict[str, str]) -> dict[str, str]:
    event = {"job_id": entry.partition("~")[0], "seq": str(sequence), "queue": queue, "at": at, **known}
    if known["state"] in ("succeeded", "dead", "cancelled"):
        event["completed_at"] = at
    return event
