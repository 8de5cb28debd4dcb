"""Personal data: which fields of a payload are marked as such, and what is shown in their place.

    def send(*, to: Annotated[str, Personal], subject: str) -> None: ...

Whatever shows a payload to people or writes it to a log shows `masked(actor, payload)`. In doubt a value is masked:
what no field knows, and what does not have its field's shape, may be personal data in the wrong place.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from inspect import unwrap
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from dramatiq.actor import Actor
from pydantic import BaseModel, RootModel

MASK = "***"

_SEVERAL = (list, tuple, set, frozenset)


class Personal:
    """Marks a field as personal data: `Annotated[str, Personal]`. It is sent as it is, and shown as `***`."""


def masked(actor: Actor[..., Any] | None, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload as it may be shown. Of an actor that this process does not know (None) no value is shown."""
    if actor is None:
        return dict.fromkeys(payload, MASK)
    contract = getattr(actor, "contract", None)
    if contract is not None:
        return cast("dict[str, Any]", _visit(contract.model, payload, _mask))
    try:
        hints = get_type_hints(unwrap(actor.fn), include_extras=True)
    except (NameError, TypeError):
        return dict.fromkeys(payload, MASK)
    if not any(holds_personal(hint) for hint in hints.values()):
        return dict(payload)
    return {name: _visit(hints[name], value, _mask) if name in hints else MASK for name, value in payload.items()}


def may_hold_personal(actor: Actor[..., Any] | None, name: str | None = None) -> bool:
    """Say whether what lies under this name of a payload, or anywhere in it, may be personal data of any shape."""
    hints = _hints_of(actor)
    if hints is None:
        return True
    return any(map(holds_personal, hints.values())) and (name not in hints or holds_personal(hints[name]))


def holds_personal(hint: Any) -> bool:
    """Say whether anything of this type is marked."""
    return _holds(hint, set())


def without_personal(text: str, hint: Any, path: Sequence[int | str], value: Any) -> str | None:
    """Return a message about the value at a path without personal data, or None where the value itself is personal."""
    hints = [hint]
    for part in path:
        if any(_is_marked(each) for each in hints):
            return None
        hints = [found for each in hints if (found := _hint_inside(each, part)) is not None] or hints
    members = [member for each in hints for member in _members(each)]
    if any(_is_marked(member) for member in members):
        return None
    found: set[str] = set()
    for each in hints:
        _visit(each, value, lambda personal: _collect(personal, found))
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _hints_of(actor: Actor[..., Any] | None) -> dict[Any, Any] | None:
    """The types of a payload's fields; None where nothing is known of them."""
    if actor is None:
        return None
    contract = getattr(actor, "contract", None)
    if contract is not None:
        return cast("dict[Any, Any]", _fields_of(contract.model))
    try:
        return get_type_hints(unwrap(actor.fn), include_extras=True)
    except (NameError, TypeError):
        return None


def _mask(value: Any) -> Any:
    return MASK


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            _collect(item, found)
    elif isinstance(value, _SEVERAL):
        for item in cast("Sequence[Any]", value):
            _collect(item, found)
    elif value not in (None, "", True, False):
        found.add(str(value))


def _visit(hint: Any, value: Any, hide: Callable[[Any], Any]) -> Any:
    """Return a value with every personal one in it replaced by what `hide` makes of it."""
    if value is None or not holds_personal(hint):
        return value
    members = _members(hint)
    if any(_is_marked(member) for member in members):
        return hide(value)
    personal = [member for member in members if holds_personal(member)]
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, Mapping):
        return _visit_mapping(personal, cast("Mapping[Any, Any]", value), hide)
    if isinstance(value, _SEVERAL):
        items = enumerate(cast("Sequence[Any]", value))
        return [_visit_inside(personal, index, item, hide) for index, item in items]
    has_plain = any(member is not type(None) and not holds_personal(member) for member in members)
    return value if has_plain else hide(value)


def _visit_mapping(hints: list[Any], value: Mapping[Any, Any], hide: Callable[[Any], Any]) -> Any:
    if any(_holds_in_keys(hint) for hint in hints):
        return hide(value)
    return {key: _visit_inside(hints, key, item, hide) for key, item in value.items()}


def _visit_inside(hints: list[Any], part: Any, item: Any, hide: Callable[[Any], Any]) -> Any:
    inside = [found for hint in hints if (found := _hint_inside(hint, part)) is not None]
    if not inside:
        return hide(item)
    for hint in inside:  # of a union each member masks its own
        item = _visit(hint, item, hide)
    return item


def _hint_inside(hint: Any, part: int | str) -> Any:
    """The type of what lies at one part of a path; None where nothing is known of it."""
    for member in _members(hint):
        fields = _fields_of(member)
        if part in fields:
            return fields[part]
        origin, args = get_origin(member), get_args(member)
        if not isinstance(origin, type) or not args:
            continue
        if issubclass(origin, Mapping):
            return args[-1]
        if isinstance(part, int) and issubclass(origin, tuple):
            return args[0] if args[-1] is Ellipsis else args[min(part, len(args) - 1)]
        if isinstance(part, int) and issubclass(origin, Sequence | Set):
            return args[0]
    return None


def _members(hint: Any) -> list[Any]:
    """The members of a union, itself where it is none; without what `Annotated` says, unless it marks."""
    hint = getattr(hint, "__value__", hint)  # of `type Name = ...`
    if get_origin(hint) is Annotated:
        return [hint] if _is_marked(hint) else _members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [inner for member in get_args(hint) for inner in _members(member)]
    if isinstance(hint, type) and issubclass(hint, RootModel):
        return _members(_fields_of_model(cast("type[BaseModel]", hint))["root"])
    return [hint]


def _is_marked(hint: Any) -> bool:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(note is Personal or isinstance(note, Personal) for note in notes)


def _holds_in_keys(hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping) and bool(args) and holds_personal(args[0])


def _holds(hint: Any, seen: set[int]) -> bool:
    members = _members(hint)
    if any(_is_marked(member) for member in members):
        return True
    for member in members:
        if id(member) not in seen:
            seen.add(id(member))
            if any(_holds(inner, seen) for inner in [*_fields_of(member).values(), *get_args(member)]):
                return True
    return False


def _fields_of(hint: Any) -> dict[int | str, Any]:
    """The fields of a model, dataclass, TypedDict or NamedTuple, by each name and place that they have in JSON."""
    if not isinstance(hint, type):
        return {}
    if issubclass(hint, BaseModel):
        return _fields_of_model(hint)
    kind = cast("Any", hint)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {field.name: hints[field.name] for field in dataclass_fields(kind)}
    if hasattr(kind, "__total__") or hasattr(kind, "_fields"):
        hints = get_type_hints(kind, include_extras=True)
        return {**hints, **(dict(enumerate(hints.values())) if hasattr(kind, "_fields") else {})}
    return {}


def _fields_of_model(model: type[BaseModel]) -> dict[int | str, Any]:
    found: dict[int | str, Any] = {}
    for name, field in model.model_fields.items():
        hint: Any = field.annotation
        for note in field.metadata:
            if note is Personal or isinstance(note, Personal):
                hint = Annotated[hint, Personal]
        for label in (name, field.alias, field.validation_alias, field.serialization_alias):
            if isinstance(label, str):
                found[label] = hint
    return found
