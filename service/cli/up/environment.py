"""Addresses, as the processes of `up` and as the user's shells get them."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.cli.up.leftovers import marks
from service.cli.up.private_file import write_private
from service.cli.up.state_dir import StateDir

PYTHONPATH = "PYTHONPATH"

#: Handed on to shells where the user has set them, so that what is sent from a shell meets these workers, and a worker
#: or a command that a shell starts finds the same actors and schedules.
HANDED_ON = ("CALLBOARD_NAMESPACE", "CALLBOARD_ACTORS", "CALLBOARD_SCHEDULES", PYTHONPATH)

#: Meant for a real mail server; the catcher has neither TLS nor users.
NOT_FOR_THE_CATCHER = ("CALLBOARD_SMTP_SECURITY", "CALLBOARD_SMTP_USERNAME", "CALLBOARD_SMTP_PASSWORD")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything is."""

    redis_url: str
    database_url: str
    api_port: int
    smtp_port: int
    mail: Path

    @property
    def api_url(self) -> str:
        """Where the API is reached from this machine."""
        return f"http://127.0.0.1:{self.api_port}"

    def variables(self) -> dict[str, str]:
        """Return the settings that say so."""
        return {
            "REDIS_URL": self.redis_url,
            "DATABASE_URL": self.database_url,
            "CALLBOARD_API_PORT": str(self.api_port),
            "CALLBOARD_URL": self.api_url,
            "CALLBOARD_SMTP_HOST": "127.0.0.1",
            "CALLBOARD_SMTP_PORT": str(self.smtp_port),
            "CALLBOARD_MAIL_DIR": str(self.mail),
        }


def base_environment(environment: Mapping[str, str], state: StateDir) -> dict[str, str]:
    """Return the environment that every process of `up` has, servers too."""
    # Unbuffered, so that a line is in the log when it is written.
    own = {"CALLBOARD_RUN_DIR": str(state.run), "PYTHONUNBUFFERED": "1"}
    return {**environment, **marks(state, os.getpid()), **own}


def child_environment(base: Mapping[str, str], addresses: Addresses, worker_port: int | None = None) -> dict[str, str]:
    """Return the environment of one of our own processes."""
    env = {**base, **addresses.variables()}
    for name in NOT_FOR_THE_CATCHER:
        env.pop(name, None)
    if worker_port is not None:
        env["CALLBOARD_WORKER_PORT"] = str(worker_port)
    return env


def write_env_file(path: Path, addresses: Addresses, environment: Mapping[str, str]) -> None:
    """Write the file that shells source."""
    variables = addresses.variables() | {name: environment[name] for name in HANDED_ON if environment.get(name)}
    if PYTHONPATH in variables:
        # The shell may be in another folder.
        folders = variables[PYTHONPATH].split(os.pathsep)
        variables[PYTHONPATH] = os.pathsep.join(map(os.path.abspath, folders))
    lines = [f"export {name}={_quoted(value)}\n" for name, value in variables.items()]
    write_private(path, "# Written by `callboard up`; source it in a shell: . .callboard/env\n" + "".join(lines))


def _quoted(value: str) -> str:
    quoted = shlex.quote(value)
    return quoted if quoted.startswith("'") else f"'{quoted}'"
