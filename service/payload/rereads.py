"""When a payload need not be read once more to know that it arrives as it is.

What was read from a JSON document, and is dumped as that same document, will be read so again. A dump has more than the
document where fields were left out: what it says for them must have been read again once.
"""

from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Rereads:
    """What has been read again of one model: for each field that was left out, its dumped value. None: never enough."""

    proven: dict[str, Any] | None = field(default_factory=dict[str, Any])

    def are_proven(self, read_from: object, dumped: dict[str, Any]) -> bool:
        """Whether a dump would be read as the payload that was read from a document."""
        if self.proven is None or not isinstance(read_from, dict):
            return False
        given = cast("dict[str, Any]", read_from)
        if given.keys() - dumped.keys():
            return False  # read under another name than it is dumped
        return all(
            _is_same(value, given[name])
            if name in given
            else name in self.proven and _is_same(value, self.proven[name])
            for name, value in dumped.items()
        )

    def prove(self, read_from: object, dumped: dict[str, Any]) -> None:
        """Keep what a dump that was read again has for the fields that the document had left out."""
        if self.proven is not None and isinstance(read_from, dict):
            self.proven.update({name: value for name, value in dumped.items() if name not in read_from})


def decides_as_a_whole(model: type[BaseModel]) -> bool:
    """Whether a model has a validator of all its fields: it may take a field that is there as one that is not."""
    return bool(model.__pydantic_decorators__.model_validators or model.__pydantic_decorators__.root_validators)


def _is_same(one: Any, other: Any) -> bool:
    kind = cast("type[Any]", type(one))
    if kind is not type(other) or one != other:
        return False
    # 1 and True and 1.0 are equal, and not the same JSON.
    if kind is dict:
        return all(_is_same(value, other[name]) for name, value in one.items())
    if kind is list:
        return all(map(_is_same, one, other))
    return True
