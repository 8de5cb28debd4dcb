"""What a payload may be whatever its actor says: JSON, and not too large. What is large is stored elsewhere."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import PayloadError

#: Levels of objects and lists, the payload itself included. What people write has less than ten.
MAX_DEPTH = 32


def check_size(actor_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], limit_bytes: int) -> None:
    """Raise PayloadError, with the biggest part's name, where arguments have more bytes of JSON than they may."""
    total = _bytes_of(args) + _bytes_of(kwargs)
    if total > limit_bytes:
        size, biggest = max((_bytes_of(value), name) for name, value in _arguments(args, kwargs))
        problem = (
            f"has {size} of the payload's {total} bytes; the limit is {limit_bytes} "
            "(CALLBOARD_MAX_PAYLOAD_BYTES): store the object, and send its name or URL"
        )
        raise PayloadError(actor_name, [(biggest, problem)])


def check_is_json(actor_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise PayloadError for the first argument that has no JSON form."""
    for name, value in _arguments(args, kwargs):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise PayloadError(actor_name, [(name, str(error))]) from None


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in [*enumerate(args), *kwargs.items()]]


def _bytes_of(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), default=str))
