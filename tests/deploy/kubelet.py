"""Plays the kubelet: runs a pod's container as a process, and ends it in the kubelet's order and timing.

The preStop hook runs first, and its time is part of the grace period. SIGTERM comes when it has ended, or when the
whole grace period is over: then the hook is ended, and two seconds are left. At the end of the grace period all that
the container runs gets SIGKILL.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

import psutil

from tests.e2e.conftest import BIN, Service
from tests.servers import eventually

LEAST_SECONDS = 2.0
DRAIN = ("callboard", "drain")


@dataclass
class Pod:
    """One container. Its files are its own, as with an emptyDir."""

    service: Service
    name: str
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    hook: subprocess.Popen[str] | None = None

    def exec(self, *command: str) -> subprocess.Popen[str]:
        """Run a command in the container."""
        path = f"{BIN}{os.pathsep}{self.environment['PATH']}"
        return subprocess.Popen(
            [shutil.which(command[0], path=path) or command[0], *command[1:]],
            env={**self.environment, "PATH": path},
            cwd=self.service.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def delete(self, grace_seconds: float, pre_stop: tuple[str, ...] = DRAIN) -> "Deletion":
        """Stop the container. Returns when it is gone."""
        began = time.monotonic()
        deletion = Deletion()
        hook = self.hook = self.exec(*pre_stop)
        try:
            deletion.said, _ = hook.communicate(timeout=grace_seconds)
            deletion.hook_code = hook.returncode
        except subprocess.TimeoutExpired:
            hook.kill()
            deletion.said, _ = hook.communicate()
        deletion.hook_seconds = time.monotonic() - began
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(max(grace_seconds - deletion.hook_seconds, LEAST_SECONDS))
            deletion.code = self.process.returncode
        except subprocess.TimeoutExpired:
            self.kill()
        deletion.seconds = time.monotonic() - began
        return deletion

    def kill(self) -> None:
        """End all that the container runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


@dataclass
class Deletion:
    """How a container ended. code: of the container, where it was not killed; hook_code: likewise."""

    said: str = ""
    hook_code: int | None = None
    hook_seconds: float = 0.0
    code: int | None = None
    seconds: float = 0.0


@dataclass
class Kubelet:
    """Starts pods."""

    service: Service
    pods: list[Pod] = field(default_factory=list)

    def start(self, name: str, *command: str, ready: bool = True, **environment: str) -> Pod:
        """Start a container, and wait until it is ready."""
        folder = self.service.folder / name
        folder.mkdir()
        own = {"CALLBOARD_RUN_DIR": str(folder / "run"), **environment}
        process = self.service.start(name, *(command or ("callboard", "worker", "default", "--threads", "4")), **own)
        port = {"CALLBOARD_WORKER_PORT": str(self.service.ports[name])}
        pod = Pod(self.service, name, process, {**self.service.environment, **port, **own})
        self.pods.append(pod)
        if ready:
            eventually(lambda: self.service.is_ready(name), 30)
        return pod


def processes_of(pod: Pod) -> list[int]:
    """The worker processes that have announced themselves in a pod."""
    return [int(path.stem) for path in (pod.service.folder / pod.name / "run").glob("*.worker") if _lives(path.stem)]


def _lives(pid: str) -> bool:
    with contextlib.suppress(OSError):
        os.kill(int(pid), 0)
        return True
    return False
