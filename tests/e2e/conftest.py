"""Processes of the service as a user starts them, each with its log in a file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers import eventually, free_port

BIN = Path(sys.executable).parent
MODULES = Path(__file__).parent.parent / "actor_modules"


class Service:
    """Starts processes in one environment, and ends them with the test."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.notes_file = folder / "notes"
        self.notes_file.touch()
        own = {name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")}
        self.environment = {
            **own,
            "PYTHONPATH": os.pathsep.join([str(MODULES), str(MODULES.parent.parent)]),
            "NOTES": str(self.notes_file),
            **environment,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        self.ports[name] = free_port()
        variables = {**self.environment, "CALLBOARD_WORKER_PORT": str(self.ports[name]), **environment}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        self.processes[name] = process
        return process

    def start_worker(self, name: str = "worker", *options: str, **environment: str) -> subprocess.Popen[bytes]:
        command = ("dramatiq", "service.actors", "--processes", "1", "--threads", "4", *options)
        process = self.start(name, *command, **environment)
        eventually(lambda: self.is_ready(name), 30)
        return process

    def is_ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def is_alive(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/livez", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def start_api(self) -> None:
        self.api_port = free_port()
        self.start("projector", "callboard", "projector")
        self.start("api", "callboard", "api", CALLBOARD_API_PORT=str(self.api_port))
        eventually(lambda: self.is_ready("projector") and self._answers("/readyz"), 30)

    def _answers(self, path: str) -> bool:
        try:
            return self.call(path)[0] == 200
        except OSError:
            return False

    def call(self, path: str, body: object = None) -> tuple[int, Any]:
        """GET, or POST where there is a body. Returns status and JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def send(self, type_: str, **payload: Any) -> str:
        status, body = self.call("/jobs", {"type": type_, "payload": payload})
        assert status == 202, body
        return body["job_id"]

    def job(self, job_id: str) -> dict[str, Any]:
        status, body = self.call(f"/jobs/{job_id}")
        assert status == 200, body
        return body

    def end_of(self, job_id: str, timeout_seconds: float = 30) -> dict[str, Any]:
        eventually(lambda: self.job(job_id)["is_terminal"], timeout_seconds)
        return self.job(job_id)

    def notes(self) -> list[str]:
        return self.notes_file.read_text().splitlines()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for orphan in self._orphans():
            with contextlib.suppress(psutil.Error):
                orphan.kill()

    def _orphans(self) -> list[psutil.Process]:
        """What a supervisor has started lives in sessions of its own, and is known by this environment."""
        return [process for process in psutil.process_iter() if _variable(process, "NOTES") == str(self.notes_file)]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


@pytest.fixture
def service(tmp_path: Path, environment: dict[str, str]) -> Iterator[Service]:
    """Redis only: workers and producers need no more."""
    service = Service(tmp_path, {**environment, "CALLBOARD_ACTORS": "sample_jobs"})
    yield service
    service.stop()


@pytest.fixture
def whole_service(service: Service, database_url: str) -> Service:
    """With database, projector and API."""
    service.environment["DATABASE_URL"] = database_url
    service.start_api()
    return service
