"""A text with fields of a payload in it, such as `email:{to}:{ref_id}`: equal texts only for equal fields."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel

from service.errors import DeclarationError, PayloadError
from service.payload.contract import PayloadContract


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """`parts` are (text before a field, the field's way through the JSON); `tail` is the text after the last."""

    actor_name: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    tail: str
    #: What a value may not hold as it is: `%`, and what ends a value that another one follows.
    escaped: frozenset[str]

    @classmethod
    def of(cls, template: str, contract: PayloadContract, option: str = "idempotency_key") -> "KeyTemplate":
        """Read a template. Raises DeclarationError where it does not fit the payload."""
        where = f"{contract.actor_name}: {option}={template!r}"
        try:
            pieces = list(Formatter().parse(template))
        except ValueError as error:
            raise DeclarationError(f"{where}: {error}") from None
        parts: list[tuple[str, tuple[str, ...]]] = []
        tail = ""
        for literal, name, spec, conversion in pieces:
            tail += literal
            if name is None:
                continue
            if spec or conversion:
                raise DeclarationError(f"{where}: {{{name}}} takes no format: the JSON value is used")
            if parts and not tail:
                raise DeclarationError(f"{where}: a text must stand between two fields, such as a colon")
            parts.append((tail, _way_to(name, contract.model, where)))
            tail = ""
        if not parts:
            raise DeclarationError(f"{where}: it names no field of the payload, so all jobs would share one key")
        dividers = {literal[0] for literal, _ in parts[1:]}
        return cls(contract.actor_name, tuple(parts), tail, frozenset(dividers | {"%"} if dividers else dividers))

    def fill(self, payload: Mapping[str, Any]) -> str | None:
        """Return the text for a payload's JSON, or None where one of its fields is None or missing.

        Raises PayloadError for a field that is a list or an object.
        """
        text = ""
        for literal, way in self.parts:
            value: Any = payload
            for name in way:
                value = cast("Any", value).get(name) if isinstance(value, Mapping) else None
            if value is None:
                return None
            if isinstance(value, list | dict):
                problem = "is a list or an object, which can't be part of a key"
                raise PayloadError(self.actor_name, [(".".join(way), problem)])
            text += literal + self._as_text(value)
        return text + self.tail

    def _as_text(self, value: str | float | bool) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        text = str(value)
        if self.escaped.isdisjoint(text):
            return text
        return "".join(
            "".join(f"%{byte:02X}" for byte in letter.encode()) if letter in self.escaped else letter for letter in text
        )


def _way_to(name: str, model: type[BaseModel], where: str) -> tuple[str, ...]:
    way: list[str] = []
    inside: type[BaseModel] | None = model
    for part in name.split("."):
        if inside is None:
            raise DeclarationError(f"{where}: {way[-1]!r} in {{{name}}} has no fields")
        field = inside.model_fields.get(part)
        if field is None:
            known = ", ".join(inside.model_fields)
            raise DeclarationError(f"{where}: {part!r} in {{{name}}} is no field of the payload, which has {known}")
        way.append(field.serialization_alias or field.alias or part)
        inside = _model_in(field.annotation)
    return tuple(way)


def _model_in(hint: Any) -> type[BaseModel] | None:
    if get_origin(hint) is Annotated:
        return _model_in(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        models = {_model_in(each) for each in get_args(hint) if each is not type(None)}
        return models.pop() if len(models) == 1 else None
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None
