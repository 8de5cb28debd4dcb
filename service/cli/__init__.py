"""The `callboard` command. A command is one file here and one line in COMMANDS; nothing imports this room.

The command files import what is heavy inside their functions, so that `callboard --help` answers at once.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from service import __version__
from service.cli import (
    api,
    dead_letters,
    down,
    drain,
    jobs,
    keys,
    migrate,
    projector,
    queues,
    rebuild,
    scheduler,
    schedules,
    worker,
    workers,
)
from service.cli.up import command as up
from service.errors import CallboardError, DeclarationError, SettingsError

#: What commands need besides the base install, by the name that is missing.
EXTRA_OF = {
    "alembic": "api",
    "fastapi": "api",
    "psycopg": "api",
    "sqlalchemy": "api",
    "uvicorn": "api",
    "apscheduler": "worker",
    "jinja2": "worker",
    "sentry_sdk": "worker",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line; its module has `configure(parser)` and `run(arguments) -> exit code`."""

    name: str
    module: ModuleType
    summary: str


COMMANDS = (
    Command("up", up, "run everything on this machine, for development"),
    Command("down", down, "drain and stop what `callboard up` runs in this directory"),
    Command("worker", worker, "keep the worker processes of queues running"),
    Command("drain", drain, "make the workers of this pod start nothing more, and wait for their jobs"),
    Command("api", api, "serve the HTTP API"),
    Command("projector", projector, "write the history of jobs to the database"),
    Command("scheduler", scheduler, "send the jobs that are due by schedule"),
    Command("jobs", jobs, "cancel jobs, and give waiting ones another priority or time"),
    Command("queues", queues, "show what is on the queues; pause, resume and purge one"),
    Command("workers", workers, "show the live workers and what each runs"),
    Command("schedules", schedules, "list, pause, resume and run schedules"),
    Command("dead-letters", dead_letters, "list, show, replay and delete jobs that are dead"),
    Command("keys", keys, "make, list, rotate and revoke API keys"),
    Command("rebuild", rebuild, "fill a Redis that has lost jobs from the database"),
    Command("migrate", migrate, "bring the database's tables up to date"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 78 for a wrong setting, 2 for a wrong command line."""
    parser = _parser()
    for argument in sys.argv[1:] if argv is None else argv:
        if not _is_text(argument):
            parser.error(f"{argument!r} is not in the encoding of this shell")
    arguments = parser.parse_args(argv)
    # Actors and schedules may be modules of the directory that the command is started in, as for `dramatiq`.
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever reads has gone, as `head` does. What is buffered would be complained of at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (SettingsError, DeclarationError) as error:
        print(error, file=sys.stderr)
        return os.EX_CONFIG
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"This needs {error.name}: pip install 'callboard[{extra}]'", file=sys.stderr)
        return os.EX_CONFIG
    except CallboardError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _is_text(argument: str) -> bool:
    """Whether an argument can be sent and stored: Python keeps bytes that are none as halves of surrogate pairs."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="callboard", description="Background jobs: run, serve and look after them.")
    parser.add_argument("--version", action="version", version=f"callboard {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.summary, description=command.summary)
        command.module.configure(one)
        one.set_defaults(run=command.module.run)
    return parser
