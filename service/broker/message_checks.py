"""What is refused of a stored message, which anybody may have written.

A message that this release can't treat as its writer meant is refused before anything of it runs. Dramatiq and its
middleware trust a message: a wrong type in an option would end a worker's thread, or be passed over as if it were not
there.
"""

from datetime import datetime
from typing import Any, cast
from uuid import UUID

from dramatiq.message import Message

from service.errors import UnreadableMessage
from service.queues import QUEUES

#: The newest format that this release reads. A message says its own in the option `format`; without it, it has 1.
FORMAT = 1

#: Options that a job's sends take over from it, each a text: for whom it works, and the trace that it belongs to.
INHERITED = frozenset({"tenant", "traceparent"})
MOST_CHARACTERS = 256

#: Beyond it a float can't tell a number from the next one, and sums with it overflow.
_MOST = 2**53

_SHAPE: dict[str, tuple[type, ...]] = {
    "queue_name": (str,),
    "actor_name": (str,),
    "args": (list, tuple),
    "kwargs": (dict,),
    "options": (dict,),
    "message_id": (str,),
    "message_timestamp": (int, float),
}
_PLAIN = tuple(kinds[0] for kinds in _SHAPE.values())
_WORDS = {str: "text", list: "a list", dict: "an object", int: "a number"}

#: Each with its least value. What a middleware of somebody else reads is left to it.
_NUMBERS = {
    "max_age": 0,
    "time_limit": 0,
    "max_retries": 0,
    "min_backoff": 0,
    "max_backoff": 0,
    "retries": 0,
    "unknown_for_ms": 0,
    "replayed_ms": 0,
    "priority": -_MOST,
    "delay": -_MOST,
}
_TEXTS = ("on_success", "on_failure", "on_retry_exhausted")

_UNTYPED = cast("Any", Message)


def format_of(fields: dict[str, Any]) -> int:
    """Return the format that a message says it has. Raises UnreadableMessage."""
    options = fields.get("options")
    given = cast("dict[str, Any]", options).get("format") if isinstance(options, dict) else None
    if given is None:
        return 1
    if type(given) is not int or given < 1:
        raise UnreadableMessage("options.format must be a whole number, 1 or more")
    return given


def payload_version_of(options: dict[str, Any]) -> int:
    """Return the version that a message's payload has: 1 where it says nothing."""
    return options.get("payload_version") or 1


def scheduled_by(options: dict[str, Any]) -> tuple[str, datetime] | None:
    """Return the schedule that has sent a message, and the due time. Options of these names may be anybody's."""
    name, due = options.get("schedule"), options.get("scheduled_for")
    if not isinstance(name, str) or not isinstance(due, str):
        return None
    try:
        return name, datetime.fromisoformat(due)
    except ValueError:
        return None


def check_place(message: Message[Any], queue: str, entry: str) -> None:
    """Raise UnreadableMessage where a message is not the one that the entry of a queue should hold."""
    if message.queue_name != queue:
        # The worker would look for a consumer by this name, and its thread would end.
        raise UnreadableMessage(f"queue_name is {message.queue_name!r}, and the message was in {queue!r}")
    if message.message_id != entry and message.message_id != entry.partition("~")[0]:
        raise UnreadableMessage(f"message_id is {message.message_id!r}, and the message was stored as {entry!r}")


def check_fields(fields: dict[str, Any], where: str = "") -> None:
    """Raise UnreadableMessage where the fields can't be those of a message. `where` names them in another message."""
    # First all at once, since nearly all of the many messages are as they should be.
    if tuple(map(type, map(fields.get, _SHAPE))) != _PLAIN:
        for name, kinds in _SHAPE.items():
            if not isinstance(fields.get(name), kinds) or isinstance(fields[name], bool):
                given = f"not {type(fields[name]).__name__}" if name in fields else "and is missing"
                raise UnreadableMessage(f"{where}{name} must be {_WORDS[kinds[0]]}, {given}")
    if not fields["actor_name"].isprintable():
        raise UnreadableMessage(f"{where}actor_name must be printable text")
    if fields["options"]:
        _check_options(fields["options"], f"{where}options.")


def _check_options(options: dict[str, Any], where: str) -> None:
    for name, value in options.items():
        if value is None:
            continue
        if name in _NUMBERS:
            if not _is_number(value, _NUMBERS[name]) and (name, value) != ("time_limit", float("inf")):
                raise UnreadableMessage(f"{where}{name} must be a number{_bound(name)}")
        elif name == "payload_version":
            if type(value) is not int or value < 1:
                raise UnreadableMessage(f"{where}payload_version must be a whole number, 1 or more")
        elif name in _TEXTS:
            if not isinstance(value, str):
                raise UnreadableMessage(f"{where}{name} must be the name of an actor")
        elif name in INHERITED or name == "parent_id":
            if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
                raise UnreadableMessage(f"{where}{name} must be text of up to {MOST_CHARACTERS} characters")
        elif name == "throws":
            raise UnreadableMessage(f"{where}throws holds Python's classes, which no message can carry")
        elif name == "pipe_target":
            _check_target(value, f"{where}pipe_target")


def _check_target(value: object, where: str) -> None:
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{where} must be a message")
    fields = cast("dict[str, Any]", value)
    check_fields(fields, f"{where}.")
    if fields["queue_name"] not in QUEUES:
        raise UnreadableMessage(f"{where}.queue_name is no known queue")
    try:
        UUID(fields["message_id"])
    except ValueError:
        raise UnreadableMessage(f"{where}.message_id must be a UUID") from None
    try:
        _UNTYPED(**fields)
    except TypeError as error:
        raise UnreadableMessage(f"{where} is no message of this release of Dramatiq: {error}") from None


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _MOST


def _bound(name: str) -> str:
    return ", 0 or more" if _NUMBERS[name] == 0 else ""
