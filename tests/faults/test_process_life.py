"""Processes that crash, come back and fork: only what crashed is replaced, and nobody waits for a lock of the dead."""

import subprocess
import sys

import psutil
import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import eventually


def pids_of(service: Service, word: str) -> list[int]:
    return [int(line.split()[1]) for line in service.notes() if line.split()[0] == word]


@pytest.mark.parametrize("how", ["sigkill", pytest.param("segfault", marks=pytest.mark.soak)])
def test_of_four_processes_only_the_crashed_one_is_replaced(service: Service, broker: RedisBroker, how: str) -> None:
    """Case 02-D05."""
    service.start("worker", "callboard", "worker", "default", "--processes", "4", "--threads", "2", **LEASE)
    words = [f"g{number}" for number in range(40)]
    for word in words:
        send(broker, "fault.good", word, 1.0)
    eventually(lambda: len({line.split()[1] for line in service.notes()}) == 4, 30)
    processes = {line.split()[1] for line in service.notes()}
    killer = send(broker, "fault.kill", how)  # in the row of the others, while all processes are busy
    eventually(lambda: state_of(broker, killer) == "dead", 40)
    eventually(lambda: broker.wire.backlog("default") == 0, 40)

    starts = pids_of(service, f"kill-{how}")
    assert len(starts) == 3, "among others once, then twice alone"
    crashed = starts[0]
    assert str(crashed) in processes
    assert all(psutil.pid_exists(int(pid)) for pid in processes - {str(crashed)}), "the other three live on"
    seen = counts(service)
    again = [word for word in words if seen[f"start-{word}"] > 1]
    assert all(seen[f"end-{word}"] == 1 for word in words if word not in again)
    assert all(pids_of(service, f"start-{word}")[0] == crashed for word in again), "only what ran beside it"
    assert len(again) <= 2, "one on its other thread, and one that had just ended and was not settled"
    assert "crashed" in (broker.find_record(killer.message_id) or {})["error"]


def test_a_killer_starts_as_often_as_it_may_and_no_more(service: Service, broker: RedisBroker) -> None:
    """Case 02-D11: the look is before the start, so the last one is the last."""
    service.start("worker", "callboard", "worker", "default", "--processes", "1", "--threads", "2", **LEASE)
    for actor, arguments, note, starts in (
        ("fault.kill_once", (), "kill-once", 1),
        ("fault.kill", ("sigkill",), "kill-sigkill", 3),
    ):
        killer = send(broker, actor, *arguments)
        eventually(lambda killer=killer: state_of(broker, killer) == "dead", 40)
        assert counts(service)[note] == starts
        record = broker.find_record(killer.message_id) or {}
        assert record["attempt"] == "1"
        assert '"crashed"' in record["error"]
    after = send(broker, "fault.good", "after")
    eventually(lambda: state_of(broker, after) == "succeeded", 40)
    assert (counts(service)["kill-once"], counts(service)["kill-sigkill"]) == (1, 3)
    keys = Keys(broker.namespace, "default")
    assert not broker.client.exists(keys.messages, keys.ready, keys.delayed, keys.leases), "nothing can start it again"


@pytest.mark.parametrize(
    "command", [("callboard", "worker", "default", "--threads", "2"), ("dramatiq", "service.actors", "--threads", "2")]
)
def test_a_module_that_connects_and_starts_threads_at_import_hangs_no_process(
    service: Service, broker: RedisBroker, command: tuple[str, ...]
) -> None:
    """Case 02-D43: four processes, and the processes of suspects, each with threads that hold locks all the time."""
    service.start("worker", *command, "--processes", "4", CALLBOARD_ACTORS="import_time_jobs")
    number = 0

    def all_four_have_worked() -> bool:
        nonlocal number
        if broker.wire.backlog("default") < 8:
            for _ in range(8):
                send(broker, "import.exchange", f"j{number}")
                number += 1
        return len({line.split()[1] for line in service.notes()}) == 4

    eventually(all_four_have_worked, 40)
    alone = [send(broker, "import.exchange_alone", f"alone{each}") for each in range(2)]
    eventually(lambda: broker.wire.backlog("default") == 0, 60)
    assert {state_of(broker, message) for message in alone} == {"succeeded"}
    assert counts(service) == {
        **{f"done-j{each}": 1 for each in range(number)},
        **{f"done-alone{n}": 1 for n in range(2)},
    }
    assert not broker.client.exists(Keys(broker.namespace, "default").dead), "no reply went to another process"


FORKING_PRODUCER = """
import multiprocessing, sys, threading
import fault_jobs
from service.broker import broker

def send(name):
    for number in range(50):
        fault_jobs.good.send(f"{name}-{number}")

def main():
    send("first")                                     # connections are open, and kept
    threads = [threading.Thread(target=send, args=(f"thread{n}",)) for n in range(2)]
    for thread in threads: thread.start()             # they hold locks and sockets at any instant
    children = [multiprocessing.get_context("fork").Process(target=send, args=(f"child{n}",)) for n in range(4)]
    for child in children: child.start()
    for child in children: child.join(20)
    for thread in threads: thread.join(20)
    sys.exit(any(child.exitcode != 0 for child in children))
main()
"""


def test_a_producer_that_forks_while_its_threads_send_shares_no_socket(service: Service, broker: RedisBroker) -> None:
    """Case 02-D43, the sender's side: each of its 350 sends is one job."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING_PRODUCER], env=service.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert broker.wire.backlog("default") == 350
