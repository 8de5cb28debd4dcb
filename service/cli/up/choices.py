"""What the user named and what `up` chose: told apart also where the shell has sourced an earlier `.callboard/env`."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from service.cli.up.private_file import write_private


@dataclass(frozen=True, slots=True)
class Port:
    """A port that was wished for, by the user or by default, and the one that was free."""

    wished: int
    chosen: int


@dataclass(slots=True)
class Ports:
    """The ports of a run, kept for the next one: a shell that has sourced `.callboard/env` finds the same."""

    by_name: dict[str, Port] = field(default_factory=dict[str, Port])

    @classmethod
    def load(cls, path: Path) -> "Ports":
        """Return the ports of the last run; none when there was no run or the file is damaged."""
        ports = cls()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            for name, numbers in json.loads(path.read_text(encoding="utf-8")).items():
                ports.by_name[str(name)] = Port(int(numbers[0]), int(numbers[1]))
        return ports

    def save(self, path: Path) -> None:
        """Keep them for the next run."""
        document = {name: [port.wished, port.chosen] for name, port in self.by_name.items()}
        write_private(path, json.dumps(document) + "\n")

    def chosen(self, name: str) -> int | None:
        """Return the port that was chosen last time."""
        port = self.by_name.get(name)
        return port.chosen if port else None

    def wish(self, name: str, named: int | None, default: int) -> int:
        """Return the port that the user wants.

        A value that equals the last choice most likely comes from the sourced file: then the wish is the one that
        led to the choice.
        """
        last = self.by_name.get(name)
        if named is None:
            return default
        return last.wished if last and last.chosen == named else named


def named_url(url: str | None, password: str) -> str | None:
    """Return a server's URL if the user named it; None if it is absent, or is our own server's.

    Only our server has our password, so a URL with it was sourced from some run's `.callboard/env`, whatever its port.
    """
    if url is None or _password_of(url) == password:
        return None
    return url


def named_port(environment: Mapping[str, str], variable: str, value: int) -> int | None:
    """Return a setting's value if the environment has it."""
    return value if environment.get(variable) else None


def _password_of(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None
