"""The Lua scripts. Each states its keys, arguments, return and complexity at its head."""

from functools import cache
from pathlib import Path

NAMES = (
    "enqueue",
    "fetch",
    "begin",
    "renew",
    "note",
    "settle",
    "replay",
    "discard",
    "forget",
    "claim",
    "relayed",
    "fold",
    "unfold",
)

_FOLDER = Path(__file__).parent


@cache
def source(name: str) -> str:
    """Return the text of a script, with what all share after its first line, which holds its flags."""
    flags, _, body = _FOLDER.joinpath(f"{name}.lua").read_text().partition("\n")
    return f"{flags}\n{_FOLDER.joinpath('common.lua').read_text()}\n{body}"
