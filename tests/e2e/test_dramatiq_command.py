"""Dramatiq's command with a user's module of plain actors and middleware, as Dramatiq's guide writes them."""

import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
import redis
from dramatiq.results import ResultFailure
from dramatiq.results.backends import RedisBackend

from service.broker import RedisBroker
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually


@pytest.fixture
def backend(redis_server: RedisServer) -> RedisBackend:
    return RedisBackend(client=redis.Redis(port=redis_server.port, socket_timeout=None))  # it waits in one read


@pytest.fixture
def module(service: Service) -> Service:
    service.environment["CALLBOARD_ACTORS"] = "promises_jobs"
    return service


def test_the_broker_and_the_modules_can_be_named_on_the_command_line(service: Service, broker: RedisBroker) -> None:
    """`dramatiq module:broker module ...`, without our entry: only the queues of the actors are served."""
    process = service.start("worker", "dramatiq", "service.broker:broker", "sample_jobs", "--processes", "1")
    message = send(broker, "sample.note", word="by name")
    eventually(lambda: state_of(broker, message) == "succeeded", 30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_two_processes_share_the_work_and_both_end(service: Service, broker: RedisBroker) -> None:
    command = ("dramatiq", "service.actors", "--processes", "2", "--threads", "2", "--pid-file", "worker.pid")
    process = service.start("worker", *command)
    messages = [send(broker, "sample.note", word=f"n{number}") for number in range(40)]
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages), 30)
    assert Counter(service.notes()) == {f"n{number}": 1 for number in range(40)}
    named = int(Path(service.folder / "worker.pid").read_text())
    children = psutil.Process(named).children(recursive=True)
    os.kill(named, signal.SIGTERM)
    assert process.wait(20) == 0
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_forks_of_a_middleware_run_beside_the_worker(module: Service) -> None:
    process = module.start_worker("worker")
    eventually(lambda: {"process_boot", "worker_boot"} <= set(module.notes()))
    eventually(lambda: any(note.startswith("fork ") for note in module.notes()))
    beside = psutil.Process(next(int(note.split()[1]) for note in module.notes() if note.startswith("fork ")))
    assert beside.is_running()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    eventually(lambda: not beside.is_running())
    assert module.notes()[-1] == "worker_shutdown"


def test_a_job_that_runs_alone_is_still_dramatiqs_actor(
    module: Service, broker: RedisBroker, backend: RedisBackend
) -> None:
    """A class, and a coroutine; their results are stored by the worker's own middleware."""
    module.start_worker("worker")
    greet, later = send(broker, "Greet", "you"), send(broker, "greet_later", "you")
    assert backend.get_result(greet, block=True, timeout=30_000) == "hello you"
    assert backend.get_result(later, block=True, timeout=30_000) == "bye you"


def test_callbacks_and_results_hear_once_of_a_job_that_kills_its_process(
    module: Service, broker: RedisBroker, backend: RedisBackend
) -> None:
    """Case 02-D11."""
    module.start_worker("worker")
    killer = send(broker, "kill_once")
    with pytest.raises(ResultFailure, match="signal 9"):
        backend.get_result(killer, block=True, timeout=30_000)
    eventually(lambda: "told ProcessDied" in module.notes())
    broker.join("default", timeout=10_000)
    assert Counter(note for note in module.notes() if note.split()[0] in ("kill-once", "told")) == {
        "kill-once": 1,
        "told ProcessDied": 1,
    }
    assert state_of(broker, killer) == "dead"


def test_the_last_crash_after_another_is_a_result_too(
    module: Service, broker: RedisBroker, backend: RedisBackend
) -> None:
    """Case 02-D11, where a worker has died with it before."""
    first = module.start_worker("first", CALLBOARD_LEASE_SECONDS="3")
    eventually(lambda: any(note.startswith("fork ") for note in module.notes()))  # until then it minds no death
    killer = send(broker, "kill_twice")
    assert first.wait(30) != 0, "the job takes its worker with it, and dramatiq stops"
    module.start_worker("second", CALLBOARD_LEASE_SECONDS="3")
    with pytest.raises(ResultFailure, match="signal 9"):
        backend.get_result(killer, block=True, timeout=30_000)
    eventually(lambda: state_of(broker, killer) == "dead")
    assert module.notes().count("kill-twice") == 2
