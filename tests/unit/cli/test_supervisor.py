"""The supervisor, over small stand-ins for the processes that it looks after."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.cli.supervise.backoff import Backoff
from service.cli.supervise.child import how_it_ended
from service.cli.supervise.program import Program
from service.cli.supervise.supervisor import Supervisor
from tests.up.eventually import eventually

#: A master with a worker of its own, as dramatiq's: the worker does not notice when its master is killed.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def stop(*_):
    child.kill(); child.wait(); pathlib.Path(sys.argv[1], "stopped").touch(); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1], str(os.getpid())).write_text(str(child.pid))
while True: time.sleep(600)
"""

STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "up").touch()
time.sleep(600)
"""


def python(name: str, code: str, folder: Path) -> Program:
    return Program(name, (sys.executable, "-c", code, str(folder)), log=folder / f"{name}.log")


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Backoff(first_seconds=0.05, young_seconds=60))
    yield supervisor
    hurry = threading.Event()
    hurry.set()
    supervisor.stop(supervisor.names(), hurry=hurry)


def worker_of(folder: Path, pid: int | None) -> int:
    path = folder / str(pid)
    return int(eventually(lambda: path.exists() and path.read_text()))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_was_killed_is_replaced_and_what_it_left_is_ended_first(supervisor, tmp_path, caplog):
    child = supervisor.start(python("email", FAMILY, tmp_path))
    first = child.pid
    orphan = worker_of(tmp_path, first)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: supervisor.tick() or child.deaths)
    assert gone(orphan)
    eventually(lambda: supervisor.tick() or child.pid)
    assert child.pid != first
    worker_of(tmp_path, child.pid)
    assert "email was killed by SIGKILL; starting it again in 0.05 s" in caplog.text


def test_each_has_a_group_of_its_own(supervisor, tmp_path):
    child = supervisor.start(python("email", FAMILY, tmp_path))
    worker = worker_of(tmp_path, child.pid)
    assert os.getpgid(worker) == child.pid == os.getsid(worker)


def test_stopping_lets_it_end_by_itself(supervisor, tmp_path):
    child = supervisor.start(python("email", FAMILY, tmp_path))
    worker = worker_of(tmp_path, child.pid)
    supervisor.stop(["email"])
    assert (tmp_path / "stopped").exists()
    assert gone(worker)
    assert supervisor.names() == []
    assert child.exit_code == 0


def test_one_that_does_not_stop_is_killed_after_its_grace_period(supervisor, tmp_path):
    child = supervisor.start(python("stubborn", STUBBORN, tmp_path))
    eventually((tmp_path / "up").exists)
    supervisor.stop(["stubborn"], grace_seconds=0.1)
    assert child.exit_code == -signal.SIGKILL


def test_hurry_kills_at_once(supervisor, tmp_path):
    child = supervisor.start(python("stubborn", STUBBORN, tmp_path))
    eventually((tmp_path / "up").exists)
    hurry = threading.Event()
    hurry.set()
    supervisor.stop(["stubborn"], grace_seconds=600, hurry=hurry)
    assert child.exit_code == -signal.SIGKILL


def test_what_is_meant_to_end_is_not_started_again(supervisor, tmp_path):
    child = supervisor.start(Program("migrate", (sys.executable, "-c", "raise SystemExit(3)"), once=True))
    eventually(lambda: supervisor.tick() or child.exit_code)
    supervisor.tick()
    assert (child.exit_code, child.pid) == (3, None)


def test_what_ends_with_a_final_code_is_not_started_again(tmp_path):
    supervisor = Supervisor(Backoff(first_seconds=0), final=[78])
    child = supervisor.start(Program("worker", (sys.executable, "-c", "raise SystemExit(78)")))
    eventually(lambda: supervisor.tick() or child.exit_code)
    supervisor.tick()
    assert (child.exit_code, child.pid, child.deaths) == (78, None, 1)


def test_others_are_looked_after_while_one_stops(supervisor, tmp_path):
    other = supervisor.start(python("other", FAMILY, tmp_path))
    worker_of(tmp_path, other.pid)
    supervisor.start(python("stubborn", STUBBORN, tmp_path))
    eventually((tmp_path / "up").exists)
    os.kill(other.pid, signal.SIGKILL)
    supervisor.stop(["stubborn"], grace_seconds=0.3)
    assert other.deaths == 1


def test_the_end_of_a_process_in_words():
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(1) == "ended with exit code 1"
    assert how_it_ended(78) == "ended with exit code 78: a setting is wrong"
