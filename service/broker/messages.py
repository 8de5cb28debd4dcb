"""Dramatiq's messages: how they are stored, with the types that Dramatiq leaves open."""

import json
from collections.abc import Callable
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, cast

from dramatiq.encoder import JSONEncoder
from dramatiq.message import Message, get_encoder
from pydantic_core import from_json

from service.broker.message_checks import check_fields
from service.errors import UnreadableMessage

#: What retries add to a message at most: a traceback, in which JSON may need several bytes for a character.
GROWTH_BYTES = 1024 * 1024

_UNTYPED = cast("Any", Message)
_FIELDS = {field.name for field in fields_of(Message)}


def _json_of(*, allow_nan: bool) -> Callable[[object], str]:
    """Return what JSONEncoder does, without the encoder in C that it makes anew for each text."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=allow_nan)
    parts: Any = cast("Any", json.encoder)
    if parts.c_make_encoder is None:
        return encoder.encode
    # Without a memory of what it is in, a value that holds itself ends in a RecursionError in place of a ValueError.
    encode = parts.c_make_encoder(
        None, encoder.default, parts.encode_basestring_ascii, None, ":", ",", False, False, allow_nan
    )
    return lambda value: "".join(encode(value, 0))


_json = _json_of(allow_nan=True)  # Dramatiq's own middleware takes an endless time limit
_payload_json = _json_of(allow_nan=False)
_quoted = cache(_json)


def encode_message(message: Message[Any]) -> bytes:
    """Return a message as it is stored: as Dramatiq encodes it, but for NaN and infinity, which no JSON has.

    Raises what the encoder raises.
    """
    if type(message) is not Message or type(get_encoder()) is not JSONEncoder:
        return message.encode()
    # The same text as Dramatiq's own, without a new encoder for each message.
    args = _payload_json(message.args) if message.args else "[]"
    kwargs = _payload_json(message.kwargs) if message.kwargs else "{}"
    options = _json(message.options) if message.options else "{}"
    return (
        f'{{"queue_name":{_quoted(message.queue_name)},"actor_name":{_quoted(message.actor_name)},"args":{args},'
        f'"kwargs":{kwargs},"options":{options},"message_id":{_json(message.message_id)},'
        f'"message_timestamp":{_json(message.message_timestamp)}}}'
    ).encode()


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Return fields as they are stored."""
    return get_encoder().encode(fields)


def decode_message(data: bytes) -> Message[Any]:
    """Read a message that this release has read before. Raises UnreadableMessage."""
    return message_of(decode_fields(data))


def decode_fields(data: bytes) -> dict[str, Any]:
    """Read a message's fields, of whatever format. Raises UnreadableMessage."""
    try:
        fields = _decode(data)
    except Exception as error:  # noqa: BLE001 - an encoder of somebody else's may raise anything
        raise UnreadableMessage(f"The message can't be decoded: {type(error).__name__}: {error}") from None
    if not isinstance(fields, dict):
        raise UnreadableMessage(f"The message must be an object, not {type(fields).__name__}")
    return cast("dict[str, Any]", fields)


def message_of(fields: dict[str, Any]) -> Message[Any]:
    """Make a message of fields in a format that this release reads. Raises UnreadableMessage."""
    check_fields(fields)
    if fields.keys() == _FIELDS:
        # Past the frozen class's own way to set each attribute, which takes longer than to parse them.
        fields["args"] = tuple(fields["args"])
        message = cast("Message[Any]", object.__new__(_UNTYPED))
        message.__dict__.update(fields)
        return message
    try:
        return _UNTYPED(**fields)
    except TypeError as error:
        raise UnreadableMessage(f"It is no message of this release of Dramatiq: {error}") from None


def copy_message(message: Message[Any], **changes: Any) -> Message[Any]:
    """Return a message with other attributes; `options` are added to those that it has."""
    return cast("Any", message).copy(**changes)


def _decode(data: bytes) -> object:
    if type(get_encoder()) is not JSONEncoder:
        return get_encoder().decode(data)
    try:
        # The same as Dramatiq's own, with a faster parser: every delivery passes here.
        return from_json(data)
    except ValueError:
        return json.loads(data.decode())  # what that parser is too strict for, such as half of a surrogate pair
