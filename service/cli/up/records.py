"""What runs now, on disk: `.callboard/run/<name>.json`, so that it is found again after a kill -9 of the supervisor.

The folder may be deleted while all runs: then leftovers.py knows the processes by their marks.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from service.cli.up.private_file import write_private

SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Record:
    """A process. Its id alone does not name it, for ids are used again: the time of its start goes with it."""

    name: str
    pid: int
    create_time: float
    url: str = ""

    @classmethod
    def of(cls, name: str, pid: int, url: str = "") -> "Record":
        """Return the record of a process. Raises psutil.Error if it has ended already."""
        return cls(name, pid, psutil.Process(pid).create_time(), url)

    @classmethod
    def from_file(cls, path: Path) -> "Record | None":
        """Return a record that was kept. None if there is none, or it is not ours or damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(str(content["name"]), int(content["pid"]), float(content["create_time"]), content["url"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def to_text(self) -> str:
        """Return what `from_file` reads."""
        return json.dumps(asdict(self)) + "\n"

    def runs(self) -> bool:
        """Say whether this very process is alive."""
        try:
            process = psutil.Process(self.pid)
            return same_time(process.create_time(), self.create_time) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class Records:
    """The records of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, pid: int) -> None:
        """Record a process that has just been started; nothing if it has ended already or there is no place for it."""
        with contextlib.suppress(psutil.Error, OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_private(self._path(name), Record.of(name, pid).to_text())

    def forget(self, name: str) -> None:
        """Remove the record of a process that has ended."""
        self._path(name).unlink(missing_ok=True)

    def all(self) -> list[Record]:
        """Return what is recorded."""
        paths = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        return [record for path in paths if (record := Record.from_file(path))]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def same_time(one: float, other: float) -> bool:
    """Compare two times of a process's start; they are exact to a clock tick."""
    return abs(one - other) < 0.02
