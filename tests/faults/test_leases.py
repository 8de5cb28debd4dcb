"""Who holds a job, and until when: the heartbeat decides, not the time that has passed nor the name of the worker."""

import os
import re
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
HOUR_MS = 3_600_000


def test_a_restart_under_the_same_name_does_not_hide_the_jobs_of_the_dead(
    service: Service, broker: RedisBroker
) -> None:
    """Cases 02-D09 and 02-D14: neither the time limit nor a worker's record plays a part, only the lease.

    No attempt is counted for the death of a worker, and a process of its own proves the job innocent.
    """
    lease = {**ACTORS, "CALLBOARD_LEASE_SECONDS": "5", "HOSTNAME": "w-0"}
    first = service.start_worker("w-0", **lease)
    broker.declare_queue("default")
    message: Message[Any] = Message("default", "fault.good", ("a", 3.0), {}, {"time_limit": HOUR_MS})
    broker.send(message)
    eventually(lambda: counts(service)["start-a"] == 1)
    os.killpg(first.pid, signal.SIGKILL)
    killed_at = time.time()
    keys = Keys(broker.namespace, "default")
    broker.client.delete(keys.waiters)  # all that is known of a worker besides its leases
    service.start_worker("w-0", **lease)
    eventually(lambda: counts(service)["start-a"] == 2, 20)
    record = broker.find_record(message.message_id) or {}
    assert int(record["started_at"]) / 1000 - killed_at < 5 + 2
    assert (record["state"], record["attempt"]) == ("running", "1")
    assert broker.client.hget(keys.lapses, message.message_id) == b"1", "that its worker was lost is noted"
    eventually(lambda: state_of(broker, message) == "succeeded", 20)
    assert counts(service) == {"start-a": 2, "end-a": 1}


def test_whatever_a_job_does_its_lease_is_renewed(service: Service, broker: RedisBroker) -> None:
    """Case 02-D13: jobs longer than two leases, blocking, burning, and holding the interpreter's lock for a second."""
    lease = {**ACTORS, "CALLBOARD_LEASE_SECONDS": "3"}
    service.start_worker("first", **lease)
    service.start_worker("second", **lease)
    messages = [send(broker, "fault.good", "sleep", 8.0), send(broker, "life.burn", "burn", 8.0)]
    eventually(lambda: counts(service) == {"start-sleep": 1, "start-burn": 1})
    messages += [send(broker, "life.hold_the_lock", f"hold{number}", 1.0) for number in range(2)]
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages), 40)
    words = ("sleep", "burn", "hold0", "hold1")
    assert counts(service) == {f"{when}-{word}": 1 for when in ("start", "end") for word in words}


@pytest.mark.parametrize(
    ("jobs", "workers"),
    [
        pytest.param(2000, 2, id="short"),
        pytest.param(10_000, 4, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
def test_no_observer_sees_a_lease_without_owner_or_end(
    service: Service, broker: RedisBroker, jobs: int, workers: int
) -> None:
    """Case 02-D28: the take, the owner and the deadline are one step, and nobody is taken for stuck."""
    broker.declare_queue("default")
    batch = [Message("default", "fault.good", (f"j{number}", 0.002), {}, {}) for number in range(jobs)]
    for number in range(workers):
        service.start_worker(f"worker-{number}", **ACTORS)
    assert not broker.send_many(batch).failed
    keys = Keys(broker.namespace, "default")
    held = 0
    while broker.wire.backlog("default"):
        with broker.client.pipeline(transaction=True) as at_once:
            at_once.time()
            at_once.hgetall(keys.leases)
            at_once.zrange(keys.deadlines, 0, -1, withscores=True)
            at_once.exists(keys.lapses)
            (seconds, _), leases, deadlines, lapses = at_once.execute()
        ends = dict(deadlines)
        assert leases.keys() == ends.keys()
        for entry, lease in leases.items():
            token, started_ms, worker = lease.split(b" ")
            assert int(token) > 0
            assert re.fullmatch(rb"[\w.-]+:\d+:[0-9a-f]{8}", worker)
            assert seconds * 1000 < ends[entry] and int(started_ms) < ends[entry]  # noqa: PT018 - of one lease
        assert not lapses, "no live worker's job is swept"
        held += len(leases)
        time.sleep(0.01)
    assert held > 100, "it has looked while they ran"
    seen = counts(service)
    assert {seen[f"{when}-j{number}"] for when in ("start", "end") for number in range(jobs)} == {1}
    assert {state_of(broker, message) for message in batch[:: jobs // 100]} == {"succeeded"}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_job_of_ten_minutes_on_a_lease_of_thirty_seconds_runs_once(service: Service, broker: RedisBroker) -> None:
    for name in ("first", "second"):
        service.start_worker(name, CALLBOARD_LEASE_SECONDS="30", CALLBOARD_ACTORS="fault_jobs")
    options = {"time_limit": 3_600_000}
    message: Message[Any] = Message("default", "fault.good", ("long", 600.0), {}, options)
    broker.send(message)
    eventually(lambda: state_of(broker, message) in ("succeeded", "dead"), 800)
    assert counts(service) == {"start-long": 1, "end-long": 1}
