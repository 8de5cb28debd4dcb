"""SIGTERM to the first process of a container, in a PID namespace of its own."""

import shlex
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

import psutil
import pytest

from service.broker import RedisBroker
from service.broker.pid_one import deaf_shell
from tests.deploy.kubelet import Kubelet, Pod
from tests.e2e.conftest import BIN
from tests.jobs import send, state_of
from tests.servers import eventually

UNSHARE = (shutil.which("unshare") or "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
CALLBOARD = f"{BIN}/callboard worker default --threads 2"
DRAMATIQ = f"{BIN}/dramatiq service.actors --processes 1 --threads 2 --skip-logging"


@cache
def namespaces() -> tuple[str, ...]:
    """The command that makes one: for root, or for who may make a user namespace."""
    for command in (UNSHARE, (*UNSHARE, "--user", "--map-root-user")):
        try:
            subprocess.run([*command, "true"], check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        return command
    pytest.skip("this user may not make PID namespaces")


def start(kubelet: Kubelet, command: str) -> Pod:
    pod = kubelet.start("pod", *namespaces(), *shlex.split(command))
    assert Path(f"/proc/{first_of(pod).pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    return pod


def first_of(pod: Pod) -> psutil.Process:
    """Process 1 of the container."""
    (first,) = psutil.Process(pod.process.pid).children()
    return first


@pytest.mark.parametrize(
    "command",
    [
        CALLBOARD,
        DRAMATIQ,
        f'sh -c "cd / && exec {CALLBOARD}"',
        f"sh -c '{CALLBOARD} & trap \"kill -TERM $!\" TERM; wait; wait'",
    ],
    ids=["callboard", "dramatiq", "shell", "init"],
)
def test_sigterm_reaches_the_worker(kubelet: Kubelet, broker: RedisBroker, command: str) -> None:
    pod = start(kubelet, command)
    running = send(broker, "fault.good", "running", 1.5)
    eventually(lambda: kubelet.service.notes())
    first_of(pod).send_signal(signal.SIGTERM)
    began = time.monotonic()
    eventually(lambda: "Draining" in kubelet.service.log("pod"), 5)
    later = send(broker, "fault.good", "later")
    assert pod.process.wait(15) in (0, 128 + signal.SIGTERM)  # the shell's own, of its wait
    assert time.monotonic() - began < 10
    assert state_of(broker, running) == "succeeded"
    assert state_of(broker, later) == "pending"
    assert "Process 1 is a shell" not in kubelet.service.log("pod")


def test_behind_a_shell_that_stays_the_drain_is_what_reaches_it(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = start(kubelet, f'sh -c "{CALLBOARD}; true"')
    eventually(lambda: "Process 1 is a shell (sh) that does not pass SIGTERM on" in kubelet.service.log("pod"))
    message = send(broker, "fault.good", "running", 1.5)
    eventually(lambda: kubelet.service.notes())
    first_of(pod).send_signal(signal.SIGTERM)
    drained = pod.exec("callboard", "drain")
    assert "drained after" in drained.communicate(timeout=20)[0]
    later = send(broker, "fault.good", "later")
    first_of(pod).kill()  # as at the end of the grace period
    assert pod.process.wait(10) != 0
    assert state_of(broker, message) == "succeeded"
    assert state_of(broker, later) == "pending", "nobody holds it"


def test_a_process_one_that_is_no_shell_or_catches_it_is_not_warned_of(tmp_path) -> None:
    def told(name: str, caught: str) -> str | None:
        (tmp_path / "comm").write_text(f"{name}\n")
        (tmp_path / "status").write_text(f"Name:\t{name}\nSigCgt:\t{caught}\n")
        return deaf_shell(tmp_path)

    assert told("sh", "0000000000000002") == "sh"
    assert told("sh", "0000000000004002") is None
    assert told("tini", "0000000000000000") is None
    assert deaf_shell(tmp_path / "none") is None
