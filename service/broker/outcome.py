"""How the run of a job ended: the closed set of outcomes that a worker settles a delivery with."""

import json
import traceback
from dataclasses import dataclass
from typing import Any

from dramatiq.message import Message
from pydantic_core import to_json

MAX_RESULT_BYTES = 256 * 1024
MAX_MESSAGE_CHARACTERS = 16 * 1024
MAX_TRACEBACK_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an exception: text only, bounded, and fit for PostgreSQL."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe an exception. Never raises, whatever the exception's own methods do."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(
            type=storable(name),
            message=storable(_text_of(error))[:MAX_MESSAGE_CHARACTERS],
            traceback=storable(_traceback_of(error))[-MAX_TRACEBACK_CHARACTERS:],
        )

    def to_json(self) -> str:
        """Return the JSON object that events carry."""
        return json.dumps({"type": self.type, "message": self.message, "traceback": self.traceback})


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The actor returned. `result` is JSON text."""

    result: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The actor failed and no attempt is left, or none is allowed."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The actor failed and is to run again: `message` waits for `delay_ms`."""

    message: Message[Any]
    delay_ms: int
    failure: Failure


Outcome = Succeeded | Dead | RetryLater


def succeeded(result: object) -> Succeeded:
    """Describe a success. Never raises: a result that has no JSON form is kept as readable text."""
    try:
        encoded = to_json(result, inf_nan_mode="strings", bytes_mode="base64", fallback=_repr_of)
    except Exception:  # noqa: BLE001 - the job has succeeded; its result's own methods must not undo that
        encoded = to_json(_repr_of(result))
    if len(encoded) > MAX_RESULT_BYTES:
        encoded = to_json(f"(a result of {len(encoded)} bytes is not kept: the limit is {MAX_RESULT_BYTES})")
    text = encoded.decode(errors="replace")
    return Succeeded(json.dumps(_storable_json(json.loads(text))) if "\\u0000" in text else text)


def storable(text: str) -> str:
    """Return text that PostgreSQL and JSON can hold: NUL and half surrogate pairs are spelt out."""
    if "\x00" not in text and text.isprintable():
        return text
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode("utf-8")


def _storable_json(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_storable_json(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {storable(str(key)): _storable_json(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may do anything
        return "(this error has no readable message)"


def _repr_of(value: object) -> str:
    try:
        return storable(repr(value))
    except Exception:  # noqa: BLE001 - a foreign __repr__ may do anything
        return f"(an unreadable {type(value).__name__})"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, limit=30))
    except Exception:  # noqa: BLE001 - formatting calls the methods of foreign exceptions
        return ""
