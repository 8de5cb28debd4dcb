"""Dramatiq's messages, with the types that Dramatiq leaves open."""

from typing import Any, cast

from dramatiq.encoder import JSONEncoder
from dramatiq.message import Message, get_encoder
from pydantic_core import from_json

_UNTYPED = cast("Any", Message)


def decode_message(data: bytes) -> Message[Any]:
    """Read a message as it is stored. Raises dramatiq's DecodeError."""
    if type(get_encoder()) is JSONEncoder:
        # The same as Dramatiq's own, with a faster parser: every delivery passes here.
        try:
            fields = from_json(data)
            fields["args"] = tuple(fields["args"])
            return _UNTYPED(**fields)
        except (ValueError, TypeError, KeyError):
            pass  # what that parser is too strict for, or nobody can read
    return _UNTYPED.decode(data)


def copy_message(message: Message[Any], **changes: Any) -> Message[Any]:
    """Return a message with other attributes; `options` are added to those that it has."""
    return cast("Any", message).copy(**changes)
