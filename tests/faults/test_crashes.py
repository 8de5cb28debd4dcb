"""Workers that die with their jobs: nothing is lost, the culprit is found, and those beside it are not punished."""

import os
import signal
import subprocess
import time
from collections import Counter

import psutil
import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import eventually

LEASE = {"CALLBOARD_LEASE_SECONDS": "2", "CALLBOARD_ACTORS": "fault_jobs"}


def seconds_from_the_last_crash(service: Service, word: str, record: dict[str, str]) -> float:
    """How long it took until the dead letter was there."""
    last = max(float(line.split()[2]) for line in service.notes() if line.startswith(word))
    return int(record["completed_at"]) / 1000 - last


def counts(service: Service) -> Counter[str]:
    return Counter(line.split()[0] for line in service.notes())


@pytest.mark.parametrize("victim", ["child", "parent", "group"])
def test_a_job_runs_elsewhere_within_its_lease_and_two_seconds(
    service: Service, broker: RedisBroker, victim: str
) -> None:
    process = service.start_worker("first", **LEASE)
    message = send(broker, "fault.good", "a", 3.0)
    eventually(lambda: counts(service)["start-a"] == 1)
    service.start_worker("second", **LEASE)
    worker = int(service.notes()[0].split()[1])
    killed_at = time.time()
    if victim == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif victim == "child":
        os.kill(worker, signal.SIGKILL)
    else:
        # The child of a dead parent works on and renews its leases: nothing is lost, and nothing runs twice.
        process.kill()
        eventually(lambda: state_of(broker, message) == "succeeded", 15)
        assert counts(service) == {"start-a": 1, "end-a": 1}
        return
    eventually(lambda: counts(service)["start-a"] == 2, 15)
    again = float(service.notes()[1].split()[2])
    assert again - killed_at < 2 + 2
    eventually(lambda: state_of(broker, message) == "succeeded", 15)
    record = broker.find_record(message.message_id)
    assert record is not None
    assert record["attempt"] == "1", "no attempt is counted"


def test_a_job_far_longer_than_its_lease_runs_once(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", CALLBOARD_LEASE_SECONDS="1", CALLBOARD_ACTORS="fault_jobs")
    service.start_worker("second", CALLBOARD_LEASE_SECONDS="1", CALLBOARD_ACTORS="fault_jobs")
    message = send(broker, "fault.good", "long", 6.0)
    eventually(lambda: state_of(broker, message) == "succeeded", 20)
    assert counts(service) == {"start-long": 1, "end-long": 1}


def test_a_worker_paused_beyond_its_lease_can_not_settle_and_its_job_is_interrupted(
    service: Service, broker: RedisBroker
) -> None:
    service.start_worker("first", **LEASE)
    message = send(broker, "fault.good", "a", 8.0)
    eventually(lambda: counts(service)["start-a"] == 1)
    paused = psutil.Process(int(service.notes()[0].split()[1]))
    paused.suspend()
    service.start_worker("second", **LEASE)
    eventually(lambda: counts(service)["start-a"] == 2, 15)
    paused.resume()
    eventually(lambda: "the job is interrupted" in service.log("first"), 15)
    eventually(lambda: state_of(broker, message) == "succeeded", 30)
    assert counts(service) == {"start-a": 2, "end-a": 1}, "the first run never came to its end"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["sigkill", "segfault"])
def test_a_killer_among_good_jobs_is_proved_and_they_all_finish(
    service: Service, broker: RedisBroker, how: str
) -> None:
    goods = [send(broker, "fault.good", f"g{number}", 0.05) for number in range(50)]
    killer = send(broker, "fault.kill", how)
    goods += [send(broker, "fault.good", f"g{number}", 0.05) for number in range(50, 100)]
    service.start("worker", "callboard", "worker", "default", "--processes", "4", "--threads", "8", **LEASE)
    eventually(lambda: state_of(broker, killer) == "dead", 120)
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in goods), 120)
    seen = counts(service)
    assert seen[f"kill-{how}"] == 3, "one start among others, then twice alone"
    assert all(seen[f"start-g{number}"] in (1, 2) for number in range(100)), "again at most once: one death was shared"
    assert all(seen[f"end-g{number}"] >= 1 for number in range(100))
    record = broker.find_record(killer.message_id)
    assert record is not None
    assert "crashed" in record["error"]
    assert seconds_from_the_last_crash(service, f"kill-{how}", record) < 1
    assert all(broker.find_record(message.message_id)["attempt"] == "1" for message in goods)  # type: ignore[index]


@pytest.mark.timeout(240)
def test_a_killer_under_plain_dramatiq_which_stops_all_its_processes(service: Service, broker: RedisBroker) -> None:
    goods = [send(broker, "fault.good", f"g{number}", 0.05) for number in range(50)]
    killer = send(broker, "fault.kill", "exit")
    goods += [send(broker, "fault.good", f"g{number}", 0.05) for number in range(50, 100)]
    command = ("dramatiq", "service.actors", "--processes", "4", "--threads", "8")
    deadline = time.monotonic() + 120
    process: subprocess.Popen[bytes] | None = None
    while state_of(broker, killer) != "dead" or any(state_of(broker, message) != "succeeded" for message in goods):
        assert time.monotonic() < deadline
        if process is None or process.poll() is not None:  # as Kubernetes would
            process = service.start("worker", *command, **LEASE)
        time.sleep(0.1)
    seen = counts(service)
    assert seen["kill-exit"] == 3
    assert all(seen[f"end-g{number}"] >= 1 for number in range(100))
    assert max(seen[f"start-g{number}"] for number in range(100)) <= 2
    record = broker.find_record(killer.message_id)
    assert record is not None
    assert seconds_from_the_last_crash(service, "kill-exit", record) < 1


def test_with_one_delivery_allowed_a_killer_starts_once_and_alone(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", **LEASE)
    killer = send(broker, "fault.kill_once")
    good = send(broker, "fault.good", "beside", 1.0)
    started = time.monotonic()
    eventually(lambda: state_of(broker, killer) == "dead", 20)
    assert time.monotonic() - started < 10
    eventually(lambda: state_of(broker, good) == "succeeded")
    assert counts(service) == {"kill-once": 1, "start-beside": 1, "end-beside": 1}
    keys = Keys(broker.namespace, "default")
    assert broker.client.zcard(keys.dead) == 1
