"""SIGTERM under load: what runs finishes, what is held goes back at once, and nothing is counted or lost."""

import signal
from collections import Counter

import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import eventually


@pytest.mark.timeout(300)
def test_twenty_terminations_under_load_lose_and_double_nothing(service: Service, broker: RedisBroker) -> None:
    sent = [send(broker, "fault.good", f"j{number}", 0.1) for number in range(600)]
    lease = {**LEASE, "CALLBOARD_LEASE_SECONDS": "30"}
    keys = Keys(broker.namespace, "default")
    for turn in range(5):
        # Four at a time, each at another moment of its work.
        names = [f"w{turn}-{number}" for number in range(4)]
        for name in names:
            service.start(name, "dramatiq", "service.actors", "--processes", "1", "--threads", "4", **lease)
        for name in names:
            eventually(lambda name=name: service.is_ready(name), 30)
            service.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            assert service.processes[name].wait(30) == 0
        assert broker.client.hlen(keys.leases) == 0, "nothing is left to a worker that is gone"
    service.start_worker("last", **lease)
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in sent[-20:]), 120)
    eventually(lambda: broker.wire.backlog("default") == 0, 120)
    seen = counts(service)
    assert {seen[f"start-j{number}"] for number in range(600)} == {1}
    assert {seen[f"end-j{number}"] for number in range(600)} == {1}
    attempts = Counter(broker.find_record(message.message_id)["attempt"] for message in sent)  # type: ignore[index]
    assert attempts == {"1": 600}


def test_what_is_held_and_not_started_goes_back_to_its_place_within_two_seconds(
    service: Service, broker: RedisBroker
) -> None:
    for number in range(12):
        send(broker, "fault.good", f"j{number}", 3.0)
    process = service.start_worker("first", **LEASE)
    eventually(lambda: len(service.notes()) == 4)
    process.send_signal(signal.SIGTERM)
    keys = Keys(broker.namespace, "default")
    eventually(lambda: broker.client.zcard(keys.ready) == 8, 2.5)
    assert process.poll() is None, "it still runs what it had started"
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 0
    assert counts(service) == {f"{word}-j{number}": 1 for word in ("start", "end") for number in range(4)}
    service.start_worker("second", **LEASE)
    eventually(lambda: len([note for note in service.notes() if note.startswith("end")]) == 12, 30)
    order = [note.split()[0] for note in service.notes() if note.startswith("start")]
    assert sorted(order[4:8]) == [f"start-j{number}" for number in (4, 5, 6, 7)], "in their place"
