"""The Lua scripts. Each states its keys, arguments, return and complexity at its head."""

from functools import cache
from pathlib import Path

NAMES = (
    *("enqueue", "fetch", "begin", "renew", "note", "settle", "replay", "discard", "forget", "claim", "relayed"),
    *("cancel", "reschedule", "pause", "counts", "purge", "report", "fold", "unfold", "enqueue_unique"),
    *("restore", "remember", "point", "holder"),
)
#: Those that know of cancelled jobs.
WITH_CANCELLED = {"fetch", "begin", "renew", "settle", "cancel", "purge", "enqueue_unique"}
#: The same script: other sends do not pay for what one with a unique key shares with a cancel.
FILE_OF = {"enqueue_unique": "enqueue"}

_FOLDER = Path(__file__).parent


@cache
def source(name: str) -> str:
    """Return the text of a script, with what it shares with others after its first line, which holds its flags."""
    flags, _, body = _FOLDER.joinpath(f"{FILE_OF.get(name, name)}.lua").read_text().partition("\n")
    shared = ("common", "cancelled") if name in WITH_CANCELLED else ("common",)
    return "\n".join([flags, *(_FOLDER.joinpath(f"{part}.lua").read_text() for part in shared), body])
