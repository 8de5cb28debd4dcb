"""A directory in which `callboard up` runs as a user runs it: through the command, in processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from service.cli.up.leftovers import MARK
from service.cli.up.state_dir import StateDir
from tests.servers import free_port
from tests.up.eventually import eventually

OURS = ("REDIS_URL", "DATABASE_URL", "CALLBOARD_")


@dataclass
class Home:
    """The directory, and the environment of its shell."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> StateDir:
        return StateDir(self.path / ".callboard")

    def run(self, *arguments: str, timeout_seconds: float = 90, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            cwd=self.path,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def up(self, **variables: str) -> str:
        """Start in the background; return the summary."""
        done = self.run("up", "--detach", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.startswith("Starting"), "nobody waits without a sign"
        return done.stdout

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        # High wishes: the usual ports belong to whoever uses this machine.
        return (
            own
            | {"CALLBOARD_API_PORT": str(free_port()), "CALLBOARD_SMTP_PORT": str(free_port())}
            | self.env
            | variables
        )

    def sourced(self) -> dict[str, str]:
        """Return what a shell has after `. .callboard/env`."""
        shell = ["sh", "-c", ". .callboard/env; env"]
        text = subprocess.run(shell, cwd=self.path, env={}, capture_output=True, text=True, check=True).stdout
        return {
            name: value
            for name, _, value in (line.partition("=") for line in text.splitlines())
            if name.startswith(OURS)
        }

    def pid_of(self, name: str) -> int:
        path = self.state.lock if name == "supervisor" else self.state.run / f"{name}.json"
        return int(json.loads(path.read_text())["pid"])

    def parts(self) -> dict[str, int]:
        """Return the process id of all that runs, the supervisor left out."""
        found: dict[str, int] = {}
        for path in self.state.run.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # what has just died is listed no more
                found[path.stem] = self.pid_of(path.stem)
        return found

    def kill_supervisor(self) -> None:
        process = psutil.Process(self.pid_of("supervisor"))
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)

    def processes(self) -> list[str]:
        """Return every process that belongs to this directory, found without the records."""
        return [
            f"{process.pid} {' '.join(process.cmdline())}" for process in psutil.process_iter() if self._owns(process)
        ]

    def post(self, path: str, body: object) -> Any:
        url = self.sourced()["CALLBOARD_URL"] + path
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.sourced()["CALLBOARD_URL"] + path, timeout=10) as answer:
            return json.load(answer)

    def clean(self) -> None:
        """End all, whatever the test has left."""
        if self.processes():
            self.run("down")
            for line in self.processes():
                os.kill(int(line.split()[0]), signal.SIGKILL)

    def _owns(self, process: psutil.Process) -> bool:
        try:
            marks = [str(self.state.root), self.state.title]
            in_command = any(mark in part for mark in marks for part in process.cmdline())
            in_own_folder = process.cwd().startswith(str(self.path))
            return in_command or in_own_folder or process.environ().get(MARK) == str(self.state.root)
        except psutil.Error:
            return False


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service.cli", *arguments]
