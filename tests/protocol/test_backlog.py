"""A worker keeps the events that nobody stores under their cap, by a thread of its own."""

from collections.abc import Callable

import dramatiq
import pytest
from dramatiq.worker import Worker

from service.broker import RedisBroker, backlog
from service.broker.keys import Keys
from service.errors import QueueFull
from tests.servers import eventually


def test_a_worker_folds_what_no_projector_stores_and_refuses_sends_where_that_is_not_enough(
    broker: RedisBroker, start_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(backlog, "BUSY_LOOK_SECONDS", 0.2)
    keys = Keys(broker.namespace, "default")

    @dramatiq.actor(broker=broker, actor_name="work", queue_name="default")
    def work(text: str = "") -> None: ...

    start_worker()
    for _ in range(400):
        work.send()
    eventually(lambda: broker.wire.backlog("default") == 0)
    assert not broker.client.exists(keys.folded)
    used = sum(broker.client.memory_usage(key) or 0 for key in (keys.events, keys.finals))
    broker.backlog._most_bytes = used * 3 // 2  # more than half of it is used
    eventually(lambda: broker.client.hlen(keys.folded) > 0)

    def send_until_full() -> None:
        for _ in range(3000):
            work.send("x" * 1000)

    with pytest.raises(QueueFull):
        send_until_full()
    broker.backlog._most_bytes = 2**30
    eventually(lambda: not broker.client.exists(keys.full))
    work.send("the refusal is over")
