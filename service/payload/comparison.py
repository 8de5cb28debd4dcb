"""Whether JSON can carry a value, and whether what arrives is what was sent.

Each function returns the path and the problem of the first value for which that is not so, or None.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from service.payload.limits import MAX_DEPTH

type_of_problem = tuple[str, str]

_PLAIN = (str, int, float, bool)
_JSON_LEAVES = (*_PLAIN, type(None))
_HARMLESS = (int, bool, type(None))


class Unsendable:
    """Marks, in a dumped document, the place of a value that has no JSON form, so that its path can be told."""

    _MARK = "\x00callboard: has no JSON form: "

    @classmethod
    def mark(cls, value: object) -> str:
        return f"{cls._MARK}{type(value).__module__}.{type(value).__qualname__}"

    @classmethod
    def problem_of(cls, text: str) -> str | None:
        return f"{text.removeprefix(cls._MARK)} has no JSON form" if text.startswith(cls._MARK) else None


def find_what_json_lacks(value: Any, levels: int = MAX_DEPTH) -> type_of_problem | None:
    """Look for a number, text or object that has no JSON form, or lies deeper than the levels that are left."""
    if isinstance(value, dict):
        items: Any = cast("dict[Any, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        return _as_problem(_lack_of(value))
    if levels == 0:
        return "", f"is nested deeper than {MAX_DEPTH} levels"
    for key, item in items:
        if not _is_harmless(key) and (lack := _lack_of(key)):
            return "", lack
        if not _is_harmless(item) and (found := find_what_json_lacks(item, levels - 1)):
            return _join(key, found[0]), found[1]
    return None


def _is_harmless(value: Any) -> bool:
    # Nearly all of nearly every payload, on the way of every send.
    kind = cast("type[Any]", type(value))
    return (value.isascii() and value[:1] != "\0") if kind is str else kind in _HARMLESS


def _lack_of(value: Any) -> str | None:
    if isinstance(value, float):
        return "NaN and infinity can't be sent as JSON" if value - value != 0 else None
    if isinstance(value, str):
        return Unsendable.problem_of(value) if _is_unicode(value) else "holds half of a surrogate pair"
    return None


def _as_problem(text: str | None) -> type_of_problem | None:
    return ("", text) if text else None


def find_lost_type(given: Any, taken: Any, levels: int = MAX_DEPTH) -> type_of_problem | None:
    """Look for an argument that its field takes as another type, such as a bytearray as bytes.

    Plain JSON is read as the field's type says, as it is over HTTP: a date may be given as text.
    """
    kind = cast("type[Any]", type(given))
    if kind in _JSON_LEAVES or levels == 0:
        return None
    if kind is dict and isinstance(taken, dict):
        items: Any = cast("dict[Any, Any]", given).items()
    elif kind in (list, tuple) and type(taken) is kind:
        items = enumerate(given)
    elif kind in (list, dict) or type(taken) is kind:
        return None
    else:
        return "", _would_arrive_as(taken, given)
    for key, value in items:
        if kind is dict and key not in taken:
            continue  # as another key: over HTTP all keys are text
        if found := find_lost_type(value, taken[key], levels - 1):
            return _join(key, found[0]), found[1]
    return None


def find_difference(sent: Any, arrived: Any) -> type_of_problem | None:
    """Look for a value that changes on its way, such as a UUID in a field of type Any, which arrives as text."""
    if isinstance(sent, BaseModel) and type(arrived) is type(sent):
        return _first_difference(_fields_of(sent), _fields_of(arrived))
    if isinstance(sent, list | tuple) and type(arrived) is type(sent):  # pyright: ignore[reportUnknownArgumentType]
        items, others = cast("list[Any]", sent), cast("list[Any]", arrived)
        return _first_difference(dict(enumerate(items)), dict(enumerate(others)))
    if isinstance(sent, dict) and isinstance(arrived, dict):
        return _first_difference(cast("dict[Any, Any]", sent), cast("dict[Any, Any]", arrived))
    if _is_same(sent, arrived):
        return None
    if (name := _type_name(cast("object", sent))) == _type_name(arrived):
        return "", f"this {name} does not survive JSON: it would arrive with another value"
    return "", _would_arrive_as(arrived, cast("object", sent))


def _first_difference(sent: dict[Any, Any], arrived: dict[Any, Any]) -> type_of_problem | None:
    for key, value in sent.items():
        if key not in arrived:
            return str(key), "would not arrive under this name"
        other = arrived[key]
        kind = cast("type[Any]", type(value))
        if kind in _JSON_LEAVES and type(other) is kind and value == other:
            continue
        if found := find_difference(value, other):
            return _join(key, found[0]), found[1]
    return None if len(sent) == len(arrived) else ("", "would arrive with more in it")


def _fields_of(model: BaseModel) -> dict[Any, Any]:
    own = vars(model)
    # A model that was not validated may lack some.
    present = {label: own[name] for label, name in _labels_of(type(model)) if name in own}
    return {**present, **model.__pydantic_extra__} if model.__pydantic_extra__ else present


@cache
def _labels_of(model: type[BaseModel]) -> list[tuple[str, str]]:
    return [(field.serialization_alias or name, name) for name, field in model.model_fields.items()]


def _is_same(sent: Any, arrived: Any) -> bool:
    if isinstance(sent, datetime) and isinstance(arrived, datetime):
        return _is_same_time(sent, arrived)
    if type(sent) is not type(arrived) and (type(sent) in _PLAIN or type(arrived) in _PLAIN):
        # Equal is not enough: an Enum's member may equal its text. Of numbers it is.
        return {type(sent), type(arrived)} == {int, float} and sent == arrived
    try:
        if sent == arrived:
            return True
    except Exception:  # noqa: BLE001 - a foreign __eq__ may do anything
        return False
    # A class without an __eq__ of its own can't be compared: its author wrote both directions.
    return type(sent) is type(arrived) and type(sent).__eq__ is object.__eq__


def _is_same_time(sent: datetime, arrived: datetime) -> bool:
    if (sent.utcoffset() is None) != (arrived.utcoffset() is None):
        return False
    # Not by ==, which is False between time zones for any time in the hour that autumn repeats.
    offsets = (sent.utcoffset() or timedelta()) - (arrived.utcoffset() or timedelta())
    return sent.replace(tzinfo=None) - arrived.replace(tzinfo=None) == offsets


def _would_arrive_as(after: object, before: object) -> str:
    return f"would arrive as {_type_name(after)}, not {_type_name(before)}: its field's type must say what it is"


def _type_name(value: object) -> str:
    return type(value).__name__


def _join(part: object, rest: str) -> str:
    return f"{part}.{rest}" if rest else str(part)


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
