"""Unknown fields: what each model of a payload says of them, and where they are."""

from typing import Any, cast

from pydantic import BaseModel

type_of_path = tuple[int | str, ...]


def extras_in(model: type[BaseModel]) -> frozenset[str | None]:
    """Return pydantic's `extra` of a model and of all models inside it, None for one that says nothing."""
    found: set[str | None] = {model.model_config.get("extra")}
    _collect(model.__pydantic_core_schema__, found)
    return frozenset(found)


def owner_of(payload: Any, path: type_of_path) -> str | None:
    """Return the `extra` of the model that holds the field at a path. Parts that name a union's member are skipped."""
    node = payload
    extra: str | None = None
    for part in path:
        if isinstance(node, BaseModel):
            extra = type(node).model_config.get("extra")
            fields = type(node).model_fields
            names = [name for name, field in fields.items() if part in (name, field.alias, field.validation_alias)]
            node = getattr(node, names[0]) if names else node
        elif isinstance(node, dict | list | tuple):
            node = _inside(node, part)
    return extra


def without(document: Any, paths: list[type_of_path]) -> Any:
    """Return a JSON document without the fields at these paths."""
    for *way, last in paths:
        node = document
        for part in way:
            node = _inside(node, part)
        if isinstance(node, dict):
            cast("dict[Any, Any]", node).pop(last, None)
    return document


def _inside(node: Any, part: int | str) -> Any:
    try:
        return node[part]
    except (LookupError, TypeError):
        return node


def _collect(schema: Any, found: set[str | None]) -> None:
    if isinstance(schema, dict):
        items = cast("dict[Any, Any]", schema)
        if items.get("type") == "model":
            found.add(items["cls"].model_config.get("extra"))
        for item in items.values():
            _collect(item, found)
    elif isinstance(schema, list | tuple):
        for item in cast("list[Any]", schema):
            _collect(item, found)
