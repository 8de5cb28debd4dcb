"""Where the processes of one machine, or of one pod, find each other: files named by process ids in CALLBOARD_RUN_DIR.

It works without any server. A process that was killed leaves its files behind: who reads one asks its process.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from service.settings import get_settings

#: The kind that tells, by its process group, of a worker that was asked to drain: its supervisor starts no other.
DRAINING = "draining"

logger = logging.getLogger(__name__)


def announce(kind: str, text: str) -> None:
    """Write what others are to know of this process, for its own user only. Without a folder it is not told."""
    folder = get_settings().run_dir
    if folder is None:
        return
    path = _path(folder, kind)
    draft = path.with_suffix(".draft")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        logger.warning(
            "CALLBOARD_RUN_DIR=%s can't be written to (%s): who looks there won't find this process", folder, error
        )


def withdraw(kind: str) -> None:
    """Take back what was announced."""
    if folder := get_settings().run_dir:
        with suppress(OSError):
            _path(folder, kind).unlink(missing_ok=True)


def is_announced(kind: str, text: str) -> bool:
    """Say whether a process has announced this, also where it is gone."""
    return any(True for _ in _with_text(kind, text))


def forget(kind: str, text: str) -> None:
    """Remove what processes that are gone have announced with this text."""
    for path in _with_text(kind, text):
        path.unlink(missing_ok=True)


def _with_text(kind: str, text: str) -> Iterator[Path]:
    if folder := get_settings().run_dir:
        yield from (folder / f"{pid}.{kind}" for pid, told in announced(folder, kind) if told.strip() == text)


def announced(folder: Path, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the process ids and texts of what was announced."""
    for path in sorted(folder.glob(f"*.{kind}")):
        with suppress(OSError, ValueError):
            yield int(path.stem), path.read_text(encoding="utf-8")


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{os.getpid()}.{kind}"
