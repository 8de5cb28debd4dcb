"""Many suspects at once: they are cleared in the time of few starts of a process."""

import os
import signal
from collections import Counter
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import state_of
from tests.servers import eventually


@pytest.mark.timeout(240)
def test_what_a_dead_worker_held_ahead_is_cleared_in_few_processes(service: Service, broker: RedisBroker) -> None:
    """Case 02-D03: all that it held is suspect, since Redis knows a delivery and not a start."""
    service.start_worker("first", **LEASE)
    held: list[Message[Any]] = [
        Message("default", "fault.good", (f"h{number}", 0.001), {}, {}) for number in range(3000)
    ]
    assert not broker.send_many(held).failed
    keys = Keys(broker.namespace, "default")
    eventually(lambda: broker.client.hlen(keys.leases) > 20)
    worker = int(service.notes()[0].split()[1])
    os.kill(worker, signal.SIGKILL)
    suspects = set(broker.client.hkeys(keys.leases))
    assert len(suspects) > 20
    service.start_worker("second", **LEASE)
    eventually(lambda: broker.wire.backlog("default") == 0, 90)
    assert all(state_of(broker, message) == "succeeded" for message in held)
    assert max(count for word, count in counts(service).items() if word.startswith("start")) <= 2
    processes = Counter(int(line.split()[1]) for line in service.notes())
    alone = {pid for pid, _ in processes.most_common()[2:]}  # the two workers ran by far the most
    assert 1 <= len(alone) <= 4, "one for each thread, however many suspects"
