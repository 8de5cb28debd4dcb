"""One event of one job, as the projector reads it from a stream: checked, so that the database can hold it."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from service.broker import events
from service.broker.outcome import storable, storable_json
from service.state.states import State

#: A longer payload is kept as the message only: an index over it would cost more than the job.
SEARCHABLE_BYTES = 16 * 1024

_JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATES = {state.value: state for state in State}
_PLAIN_RESULTS = {"null", "true", "false", "0", "1", '""', "{}", "[]"}


@dataclass(slots=True)
class Event:
    """Event number `sequence` of a job, of its entry `copy` (0 but for a further copy). Times in ms.

    `state` is None of a note, which has `data`. `result`, `error`, `payload` and `data` are JSON texts.
    """

    job_id: str
    copy: int
    sequence: int
    kind: str
    queue: str
    at: int
    created: int
    state: State | None
    type: str
    attempt: int
    started: int | None = None
    run_at: int | None = None
    worker: str | None = None
    priority: int | None = None
    key: str | None = None
    tenant: str | None = None
    parent_id: str | None = None
    reason: str | None = None
    skipped: bool = False
    result: str | None = None
    error: str | None = None
    data: str | None = None
    message: bytes | None = None
    payload: str | None = None

    @property
    def number(self) -> tuple[int, int]:
        """What no other event of the job has."""
        return self.sequence, self.copy


class Head(NamedTuple):
    """What the events of one entry of a stream have in common. `at` in ms."""

    sequence: int
    kind: str
    at: str
    worker: str | None
    queue: str


def read(head: Head, entry: str, value: bytes) -> Event | None:
    """Read one job's event in an entry of a stream; None for a note of the release before, which has no time of a job.

    Raises KeyError or ValueError for what is none, or what the database could not hold.
    """
    job_id, _, copy = entry.partition("~")
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(f"{job_id} is no job's id")
    number = _count(copy, 2**63) if copy else 0
    sequence, kind, at, worker, queue = head
    if kind in events.NOTES:
        return _note(head, job_id, number, value)
    known, message = events.known_of(kind, value, at)
    get = known.get
    state = _STATES[known["state"]]
    event = Event(
        job_id,
        number,
        sequence,
        kind,
        queue,
        _ms(at),
        _ms(known["created_at"]),
        state,
        _name(known["type"]),
        _count(get("attempt", "0"), 2**31),
    )
    if len(known) > 4:
        _read_more(event, known)
    if worker is not None and kind == "started":
        event.worker = _name(worker)
    if message is not None:
        _read_message(event, message)
    return event


def _read_more(event: Event, known: dict[str, str]) -> None:
    get = known.get
    if (started := get("started_at")) is not None:
        event.started = _ms(started)
    if (delay := get("delay_ms")) is not None:
        event.run_at = min(event.at + _count(delay, 2**63), events.MOST_MS)
    elif (run_at := get("run_at")) is not None:
        event.run_at = min(_count(run_at, 2**63), events.MOST_MS)
    if (priority := get("priority")) is not None:
        event.priority = _count(priority, 10)
    if key := get("key"):
        event.key = storable(key)
    if tenant := get("tenant"):
        event.tenant = storable(tenant)
    if reason := get("reason"):
        event.reason = storable(reason)
    event.skipped = get("skipped") == "true"
    if (result := get("result")) is not None:
        event.result = result if result in _PLAIN_RESULTS else json_text(result)
    # A job that succeeded in the end keeps no error of the attempts before.
    if (error := get("error")) is not None and event.state is not State.SUCCEEDED:
        event.error = json_text(error, of=dict)


def _read_message(event: Event, message: bytes) -> None:
    event.message = message
    try:
        fields = from_json(message)
        options, kwargs = fields["options"], fields["kwargs"]
    except (ValueError, KeyError, TypeError):
        return  # of another encoder: it is kept as it is
    if options:
        for name in events.ORIGIN:
            value = options.get(name)
            if isinstance(value, str) and (name == "tenant" or _JOB_ID.fullmatch(value)):
                setattr(event, name, storable(value))
    if kwargs and len(message) <= SEARCHABLE_BYTES:
        # What some encoders write for NaN and infinity, JSON does not have.
        known = storable_json(kwargs) if b"\\u" in message else kwargs
        event.payload = to_json(known, inf_nan_mode="strings").decode()


def _note(head: Head, job_id: str, copy: int, value: bytes) -> Event | None:
    if value[:1] in (b"{", b"["):
        return None
    created, attempt, text = value.decode(errors="replace").split(" ", 2)
    sequence, kind, at, _, queue = head
    made = _ms(created)
    data = json_text(text)
    return Event(job_id, copy, sequence, kind, queue, _ms(at), made, None, "", _count(attempt, 2**31), data=data)


def json_text(text: str, of: type | None = None) -> str:
    """Return JSON that PostgreSQL takes for a JSON text. Raises ValueError."""
    try:
        value: Any = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = _lenient(text)
    if of is not None and not isinstance(value, of):
        raise ValueError(f"it must be JSON of {of.__name__}")
    return to_text(value) if "\\u" in text or not text.isprintable() else text


def to_text(value: Any) -> str:
    """Return a value as JSON text that PostgreSQL takes."""
    return to_json(storable_json(value)).decode()


def _lenient(text: str) -> Any:
    import json  # for half of a surrogate pair, which the quick parser refuses

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return storable_json(json.loads(text, parse_constant=refuse))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _ms(text: str) -> int:
    number = int(text)
    if not 0 <= number <= events.MOST_MS:
        raise ValueError(f"{text} is no time")
    return number


def _count(text: str, beyond: int) -> int:
    number = int(text)
    if not 0 <= number < beyond:
        raise ValueError(f"{text} is no count")
    return number


def _name(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a name holds NUL")
    text.encode()  # raises for half of a surrogate pair
    return text
