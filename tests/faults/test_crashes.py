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


@pytest.mark.timeout(240)
def test_of_good_jobs_whose_workers_are_killed_again_and_again_each_succeeds_once(
    service: Service, broker: RedisBroker
) -> None:
    """None is a killer, and none is taken for one, however often it was held: only a begin counts after the first."""
    sent = [send(broker, "fault.good", f"j{number}", 0.05) for number in range(300)]
    keys = Keys(broker.namespace, "default")
    dead: set[bytes] = set()

    def suspects_wait(here: subprocess.Popen[bytes]) -> bool:
        """Whether it is stopped with suspects in its hands of which none has begun."""
        os.killpg(here.pid, signal.SIGSTOP)
        time.sleep(0.02)  # what it has said has arrived
        leases = {entry: lease.split() for entry, lease in broker.client.hgetall(keys.leases).items()}
        held = [leases[entry] for entry in broker.client.hkeys(keys.lapses) if entry in leases]
        own = [lease for lease in held if lease[2] not in dead]
        if own and not any(lease[-1] == b"begun" for lease in own):
            return True
        os.killpg(here.pid, signal.SIGCONT)
        time.sleep(0.1)
        return False

    for number in range(5):
        worker = service.start_worker(f"worker-{number}", **LEASE)
        eventually(lambda worker=worker: suspects_wait(worker) if dead else counts(service)["end-j20"] == 1, 40)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        dead.update(lease.split()[2] for lease in broker.client.hvals(keys.leases))
        assert dead
    service.start_worker("last", **LEASE)
    eventually(lambda: broker.wire.backlog("default") == 0, 60)
    assert all(state_of(broker, message) == "succeeded" for message in sent)
    ends = [
        entry
        for _, fields in broker.client.xrange(keys.events)
        for entry, event in fields.items()
        if b'"state": "succeeded"' in event or b'"state": "dead"' in event
    ]
    assert sorted(ends) == sorted(message.message_id.encode() for message in sent), "each has one end"
    starts = [count for word, count in counts(service).items() if word.startswith("start")]
    assert max(starts) <= 2, "none had begun in more than one of the deaths"
    assert sum(starts) - len(sent) <= 5 * 8, "for each death what ran, and what had ended and was not settled"
