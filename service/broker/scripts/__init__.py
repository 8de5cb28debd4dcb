"""The Lua scripts. Each states its keys, arguments, return and complexity at its head."""

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def source(name: str) -> str:
    """Return the text of a script, with the shared `record` function before it."""
    return f"{_FOLDER.joinpath('record.lua').read_text()}\n{_FOLDER.joinpath(f'{name}.lua').read_text()}"
