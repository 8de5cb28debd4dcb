"""SIGTERM and what a worker hands down: jobs finish or go back, and what a job has started obeys signals."""

import json
import random
import signal
import time
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.faults.test_crashes import counts
from tests.jobs import send, state_of
from tests.servers import eventually

ACTORS = {"CALLBOARD_ACTORS": "life_jobs,fault_jobs"}


def started_at(service: Service, word: str) -> list[float]:
    return [float(line.split()[2]) for line in service.notes() if line.startswith(f"start-{word} ")]


@pytest.mark.parametrize("mode", [[], ["--watch", "."]], ids=["plain", "watch"])
def test_a_program_that_a_job_has_started_obeys_signals(service: Service, broker: RedisBroker, mode: list[str]) -> None:
    """Case 02-D41."""
    process = service.start_worker("worker", *mode, **ACTORS)
    for actor in ("life.children", "life.children_async", "life.children_alone"):
        message = send(broker, actor)
        eventually(lambda message=message: state_of(broker, message) == "succeeded", 30)
        result: dict[str, Any] = json.loads((broker.find_record(message.message_id) or {})["result"])
        assert result["exit_code"] == -signal.SIGTERM, actor
        assert result["seconds"] < 1, actor
        assert (result["blocked_here"], result["blocked"]) == ([], []), actor
        assert set(result["ignored"]) <= {signal.SIGINT}, "a worker ignores Ctrl-C, as docs/delivery.md says"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_what_runs_at_a_sigterm_ends_here_and_starts_nowhere_else(service: Service, broker: RedisBroker) -> None:
    """Case 02-D40: leases are renewed until the last job has ended, sync or async; a second signal hurries nothing."""
    lease = {**ACTORS, "CALLBOARD_LEASE_SECONDS": "3"}
    once = service.start_worker("once", **lease)
    messages = [send(broker, "fault.good", "sync", 6.0), send(broker, "life.nap", "async", 6.0)]
    eventually(lambda: counts(service) == {"start-sync": 1, "start-async": 1})
    once.send_signal(signal.SIGTERM)
    twice = service.start_worker("twice", **lease)
    messages += [send(broker, "fault.good", "sync2", 6.0), send(broker, "life.nap", "async2", 6.0)]
    eventually(lambda: len(counts(service)) == 4)
    service.start_worker("idle", **lease)
    twice.send_signal(signal.SIGTERM)
    time.sleep(1)
    twice.send_signal(signal.SIGTERM)
    assert once.wait(30) == 0
    assert twice.wait(30) == 0
    assert [state_of(broker, message) for message in messages] == ["succeeded"] * 4, "recorded before it exits"
    kinds = ("sync", "async", "sync2", "async2")
    assert counts(service) == {f"{word}-{kind}": 1 for word in ("start", "end") for kind in kinds}


def test_jobs_longer_than_the_grace_period_are_interrupted_and_start_elsewhere(
    service: Service, broker: RedisBroker
) -> None:
    """Case 02-D40. The last of them sleeps in one C call: it can't be interrupted, and dies with its process."""
    first = service.start_worker("first", "--worker-shutdown-timeout", "1000", **ACTORS)
    words = {"steps": "life.steps", "nap": "life.nap", "deaf": "fault.good"}
    messages = {word: send(broker, actor, word, 30.0) for word, actor in words.items()}
    eventually(lambda: all(counts(service)[f"start-{word}"] == 1 for word in words))
    service.start_worker("second", **ACTORS)
    begun = time.time()
    first.send_signal(signal.SIGTERM)
    # The lease is one of 30 s: only what was handed back starts this soon.
    eventually(lambda: all(counts(service)[f"start-{word}"] == 2 for word in words), 20)
    assert first.wait(10) == 0
    for word, message in messages.items():
        again = started_at(service, word)[1]
        # Dramatiq looks at signals once a second; grace, interruption, and the second that the case allows.
        assert again - begun < 1 + 1 + 1 + 1 + 2, "and a margin for a busy machine"
        record = broker.find_record(message.message_id) or {}
        assert (record["state"], record["attempt"]) == ("running", "1"), "no attempt is counted"
    (left,) = (float(line.split()[2]) for line in service.notes() if line.startswith("left-steps "))
    assert left <= started_at(service, "steps")[1], "given back after its interruption"
    assert not broker.client.exists(Keys(broker.namespace, "default").lapses), "nor is a death of a worker"


@pytest.mark.parametrize(
    ("workers", "seconds", "per_second"),
    [
        pytest.param(2, 6, 40, id="short"),
        pytest.param(4, 180, 200, marks=[pytest.mark.soak, pytest.mark.timeout(600)], id="long"),
    ],
)
def test_workers_that_are_terminated_at_random_lose_and_double_nothing(
    service: Service, broker: RedisBroker, workers: int, seconds: int, per_second: int
) -> None:
    """Case 02-D39: a quarter of the jobs is delayed."""
    chance = random.Random(39)
    broker.declare_queue("default")
    command = ("dramatiq", "service.actors", "--processes", "1", "--threads", "4")
    names = [f"worker-{number}" for number in range(workers)]
    stops_at = dict.fromkeys(names, 0.0)
    begun = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - begun) < seconds:
        while sent < elapsed * per_second:
            delay_ms = chance.randint(1000, 5000) if sent % 4 == 0 else None
            broker.send(a_good_job(f"j{sent}"), delay_ms=delay_ms)
            sent += 1
        for name in names:
            process = service.processes.get(name)
            if process is None or process.poll() is not None:
                assert process is None or process.returncode == 0
                service.start(name, *command, **ACTORS)
                stops_at[name] = 0.0
            elif not stops_at[name] and service.is_ready(name):
                stops_at[name] = elapsed + chance.uniform(0.2, 2)
            elif stops_at[name] and elapsed > stops_at[name]:
                process.send_signal(signal.SIGTERM)
                stops_at[name] = float("inf")
        time.sleep(0.02)
    service.start_worker("last", **ACTORS)
    eventually(lambda: broker.wire.backlog("default") == 0, 60)
    seen = counts(service)
    assert {seen[f"end-j{number}"] for number in range(sent)} == {1}, "each job has ended once"
    assert {seen[f"start-j{number}"] for number in range(sent)} == {1}, "none was started twice"
    assert not broker.client.exists(Keys(broker.namespace, "default").lapses)


def a_good_job(word: str) -> Message[Any]:
    return Message(queue_name="default", actor_name="fault.good", args=(word, 0.01), kwargs={}, options={})
