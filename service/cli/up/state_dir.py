"""The folder `.callboard/`: what is where in it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths of one directory's state. All of it may be deleted while nothing runs: it is made anew, without data."""

    root: Path

    @classmethod
    def here(cls) -> "StateDir":
        """Return the state of the current directory."""
        return cls(Path.cwd() / ".callboard")

    def make(self) -> None:
        """Make the folders that are missing."""
        # PostgreSQL may run as another user (see owner.py) and has to get through this folder, so it is not private;
        # what is inside is.
        self.root.mkdir(mode=0o755, exist_ok=True)
        for folder in (self.log, self.mail, self.run, self.redis):
            folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def log(self) -> Path:
        """The output of each process, one file each."""
        return self.root / "log"

    @property
    def mail(self) -> Path:
        """One file for each mail that was sent."""
        return self.root / "mail"

    @property
    def run(self) -> Path:
        """What runs now."""
        return self.root / "run"

    @property
    def redis(self) -> Path:
        """The data of the Redis-compatible server."""
        return self.root / "redis"

    @property
    def postgres(self) -> Path:
        """The data of PostgreSQL; made by initdb."""
        return self.root / "postgres"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while it runs."""
        return self.root / "up.lock"

    @property
    def env(self) -> Path:
        """Addresses and passwords, for shells to source."""
        return self.root / "env"

    @property
    def ports(self) -> Path:
        """The ports that were wished for and chosen last time."""
        return self.root / "ports.json"

    @property
    def title(self) -> str:
        """In the titles of its servers' processes, which hide the mark in their environment."""
        return f"callboard-{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"

    def log_of(self, name: str) -> Path:
        """Return the file with the output of one process."""
        return self.log / f"{name}.log"
