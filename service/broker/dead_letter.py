"""A dead letter as it is read: what died, of what, after which attempts, and what was done with it before."""

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from dramatiq.actor import Actor

from service.broker.events import origin_of
from service.broker.messages import decode_fields
from service.broker.outcome import Reason, storable, storable_json
from service.errors import UnreadableMessage
from service.payload import MASK, masked, may_hold_personal

#: As header_of in common.lua, with the idempotency key if there is one: what anybody else has written has none.
_HEADER = re.compile(rb"(\d{1,16}) (\d{1,14}) (\d{1,9}) (\d{1,9}) ([^\x00-\x1f\x7f]*)(?:\t[^\x00-\x1f\x7f]+)?\n")
PRIORITY_STEP = 2**49


def split_header(stored: bytes) -> tuple[bytes, bytes]:
    """Return the header before a stored message, empty where none of ours stands there, and the message."""
    found = _HEADER.match(stored)
    return (stored[: found.end()], stored[found.end() :]) if found else (b"", stored)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `entry` is its name in the queue, `died_ms` tells this death from an earlier one of the job.

    error: type, message, traceback. attempts: number, worker, started_at, ended_at and error of each delivery that
    failed, the middle ones left out where there were very many. replays: at, by, why, changes. tenant: for whom the job
    works.
    """

    entry: bytes
    original_queue: str
    died_ms: int
    function: str
    reason: Reason
    error: dict[str, str]
    attempts: list[dict[str, Any]]
    replays: list[dict[str, Any]]
    stored: bytes
    tenant: str | None

    @property
    def job_id(self) -> str:
        return _text(self.entry.partition(b"~")[0])

    @property
    def failed_at(self) -> str:
        """ISO 8601, UTC."""
        return _iso(self.died_ms)

    @property
    def message(self) -> bytes:
        """The message as it is encoded, without its header."""
        return split_header(self.stored)[1]

    @property
    def priority(self) -> int | None:
        """0 (first) to 9 (last), or None where Callboard has not written it."""
        found = _HEADER.match(self.stored)
        return int(found[1]) // PRIORITY_STEP if found else None

    @property
    def payload(self) -> dict[str, Any] | None:
        """The arguments as data, `args` and `kwargs`; None where the message can't be read."""
        try:
            fields = decode_fields(self.message)
        except UnreadableMessage:
            return None
        return {name: fields.get(name) for name in ("args", "kwargs")}

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON: for `on_dead` and the archive."""
        payload = self.payload
        raw = {} if payload is not None else {"raw_base64": base64.b64encode(self.message).decode()}
        return {
            "job_id": self.job_id,
            "function": self.function,
            "payload": storable_json(payload),
            **raw,
            "error": self.error,
            "attempts": self.attempts,
            "replays": self.replays,
            "failed_at": self.failed_at,
            "original_queue": self.original_queue,
            "reason": self.reason.value,
        }

    def shown(self, actor: Actor[..., Any] | None) -> dict[str, Any]:
        """Return it as people may see it: no personal data, and no value of an actor that is not known here (None)."""
        told = self.to_dict()
        payload: Any = told["payload"]
        if payload is not None:
            args: Any = MASK if payload["args"] and may_hold_personal(actor) else payload["args"]
            kwargs: Any = payload["kwargs"]
            is_object = isinstance(kwargs, dict)
            told["payload"] = {
                "args": args,
                "kwargs": masked(actor, cast("dict[str, Any]", kwargs)) if is_object else MASK,
            }
        elif actor and may_hold_personal(actor):
            told["raw_base64"] = MASK
        told["replays"] = [{**replay, **_changes_shown(replay, actor)} for replay in self.replays]
        return told


def _changes_shown(replay: dict[str, Any], actor: Actor[..., Any] | None) -> dict[str, Any]:
    changes: dict[str, dict[str, str]] | None = replay.get("changes")
    if changes is None:
        return {}
    return {
        "changes": {
            name: dict.fromkeys(change, MASK) if may_hold_personal(actor, name) else change
            for name, change in changes.items()
        }
    }


def read(entry: bytes, queue: str, record: bytes, stored: bytes) -> DeadLetter:
    """Read a dead letter of a queue. Raises KeyError or ValueError for what no script of ours has written."""
    head, *lines = storable_lines(record)
    death = json.loads(head)
    event = death["event"]
    log = [json.loads(line) for line in lines]
    return DeadLetter(
        entry=entry,
        original_queue=queue,
        died_ms=int(death["died_at"]),
        function=str(event["type"]),
        reason=Reason(event["reason"]),
        error=storable_json(json.loads(event["error"])),
        attempts=[_attempt(line) for line in log if "attempt" in line],
        replays=[{**line, "replayed_at": _iso(line["replayed_at"])} for line in log if "replayed_at" in line],
        stored=stored,
        # Where a script has ended the job, which does not look into its message, only that says so.
        tenant=event.get("tenant") or origin_of(split_header(stored)[1]).get("tenant"),
    )


def storable_lines(record: bytes) -> list[str]:
    """Return the lines of a record: JSON in each, which holds no line break."""
    return record.decode(errors="replace").split("\n")


def _attempt(line: dict[str, Any]) -> dict[str, Any]:
    error = storable_json(line["error"])
    return {**line, "started_at": _iso(line["started_at"]), "ended_at": _iso(line["ended_at"]), "error": error}


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def _text(name: bytes) -> str:
    return storable(name.decode(errors="backslashreplace"))
