"""How the run of a job ended: the closed set of outcomes that a worker settles a delivery with."""

import json
import traceback
from dataclasses import dataclass
from enum import StrEnum
from inspect import isgenerator
from typing import Any, cast

from dramatiq.message import Message
from pydantic_core import to_json, to_jsonable_python

from service.errors import without_middle

#: Digits that Python always reads back (`sys.set_int_max_str_digits` can't set a lower limit).
SHORTEST_UNREADABLE_NUMBER = 640
MAX_RESULT_BYTES = 256 * 1024
MAX_TYPE_CHARACTERS = 1024
MAX_MESSAGE_CHARACTERS = 16 * 1024
MAX_TRACEBACK_CHARACTERS = 64 * 1024
#: In the log of a job's attempts.
BRIEF_CHARACTERS = 500


class Reason(StrEnum):
    """Why a job is a dead letter."""

    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    EXPIRED = "expired"
    UNKNOWN_ACTOR = "unknown-actor"
    INVALID = "invalid"
    CANCELLED = "cancelled-by-operator"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an exception: text only, bounded, and fit for PostgreSQL."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe an exception. Never raises, whatever the exception's own methods do."""
        if known := _known_already(error):
            return known
        return cls(
            type=storable(_type_name(type(error)))[:MAX_TYPE_CHARACTERS],
            message=storable(_text_of(error))[:MAX_MESSAGE_CHARACTERS],
            # Its end is the error's message, which may be of any length; before it are the frames.
            traceback=without_middle(storable(_traceback_of(error)), MAX_TRACEBACK_CHARACTERS),
        )

    def to_json(self) -> str:
        """Return the JSON object that events carry."""
        return json.dumps({"type": self.type, "message": self.message, "traceback": self.traceback})

    def brief(self) -> str:
        """Return the JSON object that the log of attempts carries."""
        return json.dumps({"type": self.type[:BRIEF_CHARACTERS], "message": self.message[:BRIEF_CHARACTERS]})


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The actor returned. `result` is JSON text."""

    result: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The job ends as a dead letter: no attempt is left, or none is allowed."""

    failure: Failure
    reason: Reason = Reason.FAILED


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The actor failed and is to run again: `message` waits for `delay_ms`."""

    message: Message[Any]
    delay_ms: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The actor asks to run later, with no attempt counted: `message` waits for `delay_ms`."""

    message: Message[Any]
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process of its own in which a suspect ran has died: no attempt is counted, but a delivery."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was cancelled. Redis has kept by whom; `failure` is told where it has not, as of a job that raises it."""

    failure: Failure


Outcome = Succeeded | Dead | RetryLater | Snoozed | Crashed | Cancelled

#: Of a job that ends so without anybody's asking.
BY_ITSELF = Cancelled(Failure("Cancelled", "The job has ended itself as cancelled", ""))


#: Of actors that return nothing: most of them.
NOTHING = Succeeded("null")


def succeeded(result: object) -> Succeeded:
    """Describe a success. Never raises: a result that has no JSON form is kept as readable text."""
    if result is None:
        return NOTHING
    try:
        # A generator is not run to its end: what is inside would run outside of the job, maybe for ever.
        value = readable(result) if isgenerator(result) else result
        encoded = to_json(value, inf_nan_mode="strings", bytes_mode="base64", fallback=readable)
        if len(encoded) > SHORTEST_UNREADABLE_NUMBER:
            json.loads(encoded)  # Python itself refuses to read a number of many thousand digits
    except Exception:  # noqa: BLE001 - the job has succeeded; its result's own methods must not undo that
        encoded = _spelt_out(result)
    if len(encoded) > MAX_RESULT_BYTES:
        encoded = to_json(f"(a result of {len(encoded)} bytes is not kept: the limit is {MAX_RESULT_BYTES})")
    text = encoded.decode(errors="replace")
    return Succeeded(json.dumps(storable_json(json.loads(text))) if "\\u0000" in text else text)


def _spelt_out(result: object) -> bytes:
    """Return JSON of a result that half of a surrogate pair keeps from being encoded; of any other, readable text."""
    try:
        value = to_jsonable_python(
            _with_storable_keys(result), inf_nan_mode="strings", bytes_mode="base64", fallback=readable
        )
        return json.dumps(storable_json(value), allow_nan=False).encode()
    except Exception:  # noqa: BLE001 - as above
        return to_json(readable(result))


def _with_storable_keys(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_storable_keys(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            storable(key) if isinstance(key, str) else key: _with_storable_keys(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    return value


def storable(text: str) -> str:
    """Return text that PostgreSQL and JSON can hold: NUL and half surrogate pairs are spelt out."""
    if "\x00" not in text and text.isprintable():
        return text
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode("utf-8")


def storable_json(value: Any) -> Any:
    """Return a JSON value whose texts are all storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [storable_json(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def _known_already(error: BaseException) -> Failure | None:
    """What the process of a suspect says of an error that it has sent: the traceback stays behind there."""
    try:
        known = vars(error).get("failure_in_child") or vars(error).get("failure")
    except Exception:  # noqa: BLE001 - a foreign class may do anything
        return None
    return known if isinstance(known, Failure) else None


def _type_name(kind: type) -> str:
    try:
        return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # noqa: BLE001 - a foreign metaclass may do anything
        return "(an unreadable type)"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a foreign __str__ may do anything
        return "(this error has no readable message)"


def readable(value: object) -> str:
    """Return a text for a value. Never raises."""
    try:
        return storable(repr(value))
    except BaseException:  # noqa: BLE001 - a foreign __repr__ may do anything
        return f"(an unreadable {type(value).__name__})"


def _traceback_of(error: BaseException) -> str:
    try:
        # The innermost frames say where it broke; the outermost are the worker's own.
        return "".join(traceback.format_exception(error, limit=-30))
    except BaseException:  # noqa: BLE001 - formatting calls the methods of foreign exceptions
        return "".join(traceback.format_tb(error.__traceback__, limit=-30))
