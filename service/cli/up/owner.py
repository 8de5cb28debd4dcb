"""Which user PostgreSQL runs as: it refuses to run as root, so root runs it as another user."""

import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from service.cli.failure import CommandFailed

_CAPABILITY = "+dac_override"


@dataclass(frozen=True, slots=True)
class Owner:
    """A user to run as. `ids` is None where that is the present user."""

    ids: tuple[int, int] | None = None
    through_setpriv: bool = False

    def command(self, argv: list[str]) -> tuple[str, ...]:
        """Return the command that runs as this user."""
        if self.ids is None or not self.through_setpriv:
            return tuple(argv)
        user, group = self.ids
        # The user can't get through a folder on the way, such as /root: with this capability it can, and nothing
        # outside of our folder needs another mode. initdb asks access(2), which leaves capabilities of another user
        # than root out of account unless the secure bit is set.
        return (
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
            *(f"--inh-caps={_CAPABILITY}", f"--ambient-caps={_CAPABILITY}", "--securebits=+no_setuid_fixup", "--"),
            *argv,
        )

    @property
    def popen_ids(self) -> tuple[int, int] | None:
        """The ids that the process is started with; setpriv itself is started as root."""
        return None if self.through_setpriv else self.ids

    def give(self, path: Path) -> None:
        """Make this user the owner of a file or folder."""
        if self.ids is not None:
            os.chown(path, *self.ids)


def owner_for(data: Path, binaries: Path) -> Owner:
    """Return the user that PostgreSQL runs as, for this data folder and these programs."""
    if os.geteuid() != 0:
        return Owner()
    ids = _owner_of(data) or _nobody()
    blocked = _blocked(data.parent) or _blocked(binaries)
    if blocked and shutil.which("setpriv") is None:
        raise CommandFailed(
            f"PostgreSQL can't run as root, and the user that it runs as can't get through {blocked}. Install setpriv "
            "(util-linux), run `callboard up` as an ordinary user, or set DATABASE_URL to a server of your own."
        )
    return Owner(ids, through_setpriv=blocked is not None)


def _owner_of(data: Path) -> tuple[int, int] | None:
    if not data.exists():
        return None
    status = data.stat()
    return (status.st_uid, status.st_gid) if status.st_uid != 0 else None


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise CommandFailed(
            "PostgreSQL can't run as root, and this machine has no user `nobody` to run it as. Run `callboard up` as "
            "an ordinary user, or set DATABASE_URL to a server of your own."
        ) from None
    return entry.pw_uid, entry.pw_gid


def _blocked(path: Path) -> Path | None:
    real = path.resolve()
    for folder in (real, *real.parents):
        if not stat.S_IMODE(folder.stat().st_mode) & 0o001:
            return folder
    return None
