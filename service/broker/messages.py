"""Dramatiq's messages, with the types that Dramatiq leaves open."""

from typing import Any, cast

from dramatiq.message import Message

_UNTYPED = cast("Any", Message)


def decode_message(data: bytes) -> Message[Any]:
    """Read a message as it is stored. Raises dramatiq's DecodeError."""
    return _UNTYPED.decode(data)


def copy_message(message: Message[Any], **changes: Any) -> Message[Any]:
    """Return a message with other attributes; `options` are added to those that it has."""
    return cast("Any", message).copy(**changes)
