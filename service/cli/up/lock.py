"""One supervisor for a directory. The kernel gives the lock back when its holder dies, so it is never stale."""

import fcntl
import os
from pathlib import Path

from service.cli.up.records import Record


class UpLock:
    """An exclusive lock on a file, in which its holder says who it is.

    Its descriptor is not inherited by what the supervisor starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock. False when another process has it."""
        while self._lock():
            if self.is_held():
                return True
            # The file was deleted after it was opened: this was a lock on nothing.
            self.release()
        return False

    def is_held(self) -> bool:
        """Say whether the lock is ours and is still the file of that name: it may have been deleted or moved."""
        if self._descriptor is None:
            return False
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # Not to be seen for now: no sign that another process could take it.
            return True
        return os.path.samestat(there, os.fstat(self._descriptor))

    def sign(self, holder: Record) -> None:
        """Write down who holds it."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder.to_text().encode(), 0)

    def holder(self) -> Record | None:
        """Return who holds it. None if nobody does, or it has not signed yet."""
        record = Record.from_file(self._path)
        return record if record and record.runs() else None

    def release(self) -> None:
        """Give the lock back. The file stays: deleting it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True
