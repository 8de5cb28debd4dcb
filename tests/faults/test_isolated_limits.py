"""Jobs in a process of their own: a limit ends them whatever they do, and their slot is free within a second."""

import json
import os
import signal
import time
from typing import Any

import psutil
import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import eventually

ISOLATED = {**LEASE, "CALLBOARD_ACTORS": "isolated_jobs"}


def record(broker: RedisBroker, message: Message[Any], state: str) -> dict[str, str]:
    eventually(lambda: state_of(broker, message) == state, 30)
    return broker.find_record(message.message_id) or {}


def noted(service: Service, word: str) -> tuple[int, float]:
    """Process and time of the first note that begins so."""
    eventually(lambda: any(line.startswith(word) for line in service.notes()), 20)
    _, pid, when = next(line for line in service.notes() if line.startswith(word)).split()
    return int(pid), float(when)


@pytest.mark.parametrize(("actor", "payload"), [("isolated.sleep", {"seconds": 3600}), ("isolated.regex", {})])
def test_the_hard_limit_ends_what_never_returns_to_python(
    service: Service, broker: RedisBroker, actor: str, payload: dict[str, Any]
) -> None:
    service.start_worker("first", "--threads", "1", **ISOLATED)
    message = send(broker, actor, **payload)
    process, begin = noted(service, "begin")
    send(broker, "threaded.next")
    error = json.loads(record(broker, message, "dead")["error"])
    assert error["type"].endswith("TimeLimitExceeded")
    assert "longer than its timeout" in error["message"]
    assert noted(service, "next")[1] - begin < 2.0, "its limit of 1 s, and 1 s"
    assert not psutil.pid_exists(process)


def test_a_process_runs_one_job_after_another(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", "--threads", "1", **ISOLATED)
    messages = [send(broker, "isolated.sleep", seconds=0.01) for _ in range(5)]
    assert len({record(broker, message, "succeeded")["result"] for message in messages}) == 1


def test_the_soft_limit_ends_a_blocked_call_and_the_job_cleans_up(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ISOLATED)
    message = send(broker, "isolated.soft")
    begin = noted(service, "begin")[1]
    assert record(broker, message, "succeeded")["result"] == '"cleaned up"'
    assert 0.9 < noted(service, "told")[1] - begin < 2.0


def test_a_job_that_needs_more_memory_than_it_may_fails_and_says_so(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ISOLATED)
    modest, greedy = send(broker, "isolated.memory", megabytes=50), send(broker, "isolated.memory", megabytes=400)
    assert record(broker, modest, "succeeded")["result"] == str(50 * 1024 * 1024)
    error = json.loads(record(broker, greedy, "dead")["error"])
    assert error["type"] == "MemoryError"
    assert "memory_limit_mb=256" in error["message"]
    assert counts(service) == {"begin": 3}, "it is an error like any other: tried again"
    again = send(broker, "isolated.memory", megabytes=50)
    record(broker, again, "succeeded")


def test_a_job_that_kills_its_process_is_a_crash_and_its_worker_lives_on(service: Service, broker: RedisBroker) -> None:
    worker = service.start_worker("first", **ISOLATED)
    message = send(broker, "isolated.segfault")
    error = json.loads(record(broker, message, "dead")["error"])
    assert (error["type"], error["message"]) == ("crashed", "The process of the job ended with signal 11")
    assert counts(service) == {"begin": 3}
    assert worker.poll() is None


def test_a_process_and_what_its_job_started_end_with_a_killed_worker(service: Service, broker: RedisBroker) -> None:
    worker = service.start_worker("first", **ISOLATED)
    send(broker, "isolated.endless")
    process, _ = noted(service, "begin")
    noted(service, "grandchild-")
    grandchild = int(next(line for line in service.notes() if line.startswith("grandchild-")).split()[0][11:])
    time.sleep(0.2)  # the expression holds the interpreter by now
    os.killpg(worker.pid, signal.SIGKILL)
    eventually(lambda: not (psutil.pid_exists(process) or psutil.pid_exists(grandchild)), 5)
