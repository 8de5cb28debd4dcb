"""What `end_leftovers` ends, and what it must never touch."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.cli.up import leftovers
from service.cli.up.leftovers import MARK, SUPERVISED_BY, end_leftovers, marks, supervisors
from service.cli.up.records import Records
from service.cli.up.state_dir import StateDir
from service.cli.up.valkey import valkey_answers, valkey_program
from tests.servers import free_port
from tests.up.eventually import eventually

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]
#: Starts a process in its group, writes its id, and waits.
LEADER = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); time.sleep(600)"


class Processes:
    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, argv: list[str], **variables: str) -> subprocess.Popen[str]:
        env = os.environ | variables
        process = subprocess.Popen(argv, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path)
    state.run.mkdir()
    return state


def test_a_recorded_process_is_ended_and_its_record_removed(state, processes):
    process = processes.start(SLEEP)
    Records(state.run).write("email", process.pid)
    assert end_leftovers(state) == ["email"]
    assert process.wait(5) == -signal.SIGTERM
    assert Records(state.run).all() == []
    assert end_leftovers(state) == []


def test_another_process_with_a_recorded_id_is_not_touched(state, processes):
    process = processes.start(SLEEP)
    (state.run / "email.json").write_text(f'{{"name": "email", "pid": {process.pid}, "create_time": 1.0, "url": ""}}')
    assert end_leftovers(state) == []
    assert process.poll() is None


def test_what_a_killed_leader_left_in_its_group_is_ended(state, processes):
    leader = processes.start([sys.executable, "-c", LEADER, *SLEEP])
    assert leader.stdout
    orphan = psutil.Process(int(leader.stdout.readline()))
    Records(state.run).write("email", leader.pid)
    leader.kill()
    leader.wait()
    end_leftovers(state)
    eventually(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)


def test_a_process_without_a_record_is_known_by_the_mark_of_this_directory_only(state, processes, tmp_path):
    ours = processes.start(SLEEP, **{MARK: str(tmp_path)})
    others = processes.start(SLEEP, **{MARK: str(tmp_path / "other")})
    eventually(lambda: all(psutil.Process(process.pid).environ().get(MARK) for process in (ours, others)))
    assert end_leftovers(state) == ["processes without a record"]
    assert ours.wait(5) == -signal.SIGTERM
    assert others.poll() is None


def test_a_redis_without_a_record_is_known_though_it_hides_its_environment(state, processes):
    state.redis.mkdir()
    port = free_port()
    program = valkey_program(state, port, "secret", {})
    server = processes.start(list(program.argv), **{MARK: str(state.root)})
    eventually(lambda: valkey_answers(port, "secret"))
    assert not psutil.Process(server.pid).environ().get(MARK)
    assert end_leftovers(state) == ["processes without a record"]
    assert server.wait(5) == 0


def test_a_supervisor_that_lost_its_lock_is_known_by_what_it_started_and_ends_first(state, processes):
    supervisor = processes.start(SLEEP)
    variables = marks(state, supervisor.pid)
    child = processes.start(SLEEP, **variables)
    eventually(lambda: psutil.Process(child.pid).environ().get(MARK))
    assert [record.pid for record in supervisors(state)] == [supervisor.pid]
    assert end_leftovers(state) == ["supervisor"]
    assert supervisor.wait(5) == child.wait(5) == -signal.SIGTERM


def test_a_supervisor_is_no_other_process_with_its_id_and_not_this_one(state, processes):
    innocent = processes.start(SLEEP)
    for variables in (marks(state, innocent.pid) | {SUPERVISED_BY: f"{innocent.pid} 1.0"}, marks(state, os.getpid())):
        child = processes.start(SLEEP, **variables)
        eventually(lambda child=child: psutil.Process(child.pid).environ().get(MARK))
    assert supervisors(state) == []
    end_leftovers(state)
    assert innocent.poll() is None


def test_what_ignores_sigterm_is_killed(state, processes, monkeypatch):
    monkeypatch.setattr(leftovers, "GRACE_SECONDS", 0.3)
    process = processes.start(STUBBORN)
    Records(state.run).write("email", process.pid)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    end_leftovers(state)
    assert process.wait(5) == -signal.SIGKILL
