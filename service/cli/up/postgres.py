"""PostgreSQL of `callboard up`."""

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.cli.failure import CommandFailed
from service.cli.supervise.program import Program, nothing
from service.cli.up import programs
from service.cli.up.owner import Owner, owner_for
from service.cli.up.private_file import write_private
from service.cli.up.state_dir import StateDir

NAME = "postgres"
USER = DATABASE = "callboard"


@dataclass(frozen=True, slots=True)
class Postgres:
    """The server of one state folder: its programs, and the user it runs as."""

    state: StateDir
    binaries: Path
    owner: Owner
    env: dict[str, str]

    @classmethod
    def find(cls, state: StateDir, env: dict[str, str]) -> "Postgres":
        """Return the server, if this machine has the programs for it."""
        binaries = programs.postgres_binaries()
        # PGDATA, PGPORT and the like are meant for other servers.
        own = {name: value for name, value in env.items() if not name.startswith("PG")}
        return cls(state, binaries, owner_for(state.postgres, binaries), own)

    def prepare(self, password: str) -> None:
        """Make the data folder the first time; later, check that this version can read it."""
        if self.state.postgres.exists():
            self._check_version()
        else:
            self._make_data(password)

    def set_password(self, password: str) -> None:
        """Give the user of existing data another password. Only while the server does not run."""
        self._check_version()
        self._run_statement(self.state.postgres, f"ALTER ROLE {USER} PASSWORD '{password}'")

    def program(self, port: int, before_start: Callable[[], None] = nothing) -> Program:
        """Return the server as a program to run."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            # Part of the title of each of its processes: so they are known when the server was killed.
            "cluster_name": self.state.title,
            "log_line_prefix": "",
            "log_checkpoints": "off",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return Program(
            NAME,
            self._command("postgres", "-D", str(self.state.postgres), *settings),
            env=self.env,
            log=self.state.log_of(NAME),
            # The fast shutdown: it closes connections instead of waiting for them.
            stop_signal=signal.SIGINT,
            owner=self.owner.popen_ids,
            before_start=before_start,
        )

    def answers(self, pid: int | None) -> bool:
        """Say whether the server with this process id accepts connections: it writes so itself, as for pg_ctl."""
        try:
            lines = (self.state.postgres / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _check_version(self) -> None:
        made_by = (self.state.postgres / "PG_VERSION").read_text(encoding="utf-8").strip()
        answer = subprocess.run([self.binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"\d+", answer.stdout)
        present = found.group() if found else "?"
        if made_by != present:
            raise CommandFailed(
                f"The data in .callboard/postgres was made by PostgreSQL {made_by}, and this is {present}, which can't "
                f"read it. Install PostgreSQL {made_by} again, or move .callboard/postgres away to start without data."
            )

    def _make_data(self, password: str) -> None:
        # Made beside and renamed, so that a start that was broken off leaves no half-made data behind.
        draft = self.state.root / "postgres.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        self.owner.give(draft)
        password_file = self.state.root / "postgres.new.password"
        write_private(password_file, password + "\n")
        self.owner.give(password_file)
        self._run(
            *("initdb", "-D", str(draft), f"--username={USER}", f"--pwfile={password_file}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        )
        self._run_statement(draft, f"CREATE DATABASE {DATABASE}")
        password_file.unlink()
        draft.rename(self.state.postgres)

    def _run_statement(self, data: Path, statement: str) -> None:
        self._run("postgres", "--single", "-D", str(data), "postgres", statement=f"{statement}\n")

    def _run(self, program: str, *arguments: str, statement: str = "") -> None:
        user, group = self.owner.popen_ids or (None, None)
        done = subprocess.run(
            self._command(program, *arguments),
            input=statement,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self.env,
            check=False,
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        if done.returncode != 0:
            raise CommandFailed(f"PostgreSQL's {program} failed (exit code {done.returncode}):\n{done.stdout.strip()}")

    def _command(self, program: str, *arguments: str) -> tuple[str, ...]:
        return self.owner.command([str(self.binaries / program), *arguments])


def url(port: int, password: str) -> str:
    """Return what DATABASE_URL is for this server."""
    return f"postgresql://{USER}:{password}@127.0.0.1:{port}/{DATABASE}"
