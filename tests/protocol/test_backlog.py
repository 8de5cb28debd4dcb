"""A worker keeps the events that nobody stores under their cap, by a thread of its own."""

from collections.abc import Callable
from pathlib import Path

import dramatiq
import pytest
from dramatiq.worker import Worker

from service.broker import RedisBroker, backlog
from service.broker.keys import Keys
from service.errors import QueueFull
from tests.brokers import broker_at
from tests.servers import RedisServer, eventually, redis_flavours


@pytest.mark.parametrize("program", redis_flavours().values(), ids=redis_flavours())
def test_all_records_are_found_however_many_there_are(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(program, tmp_path)
    server.start()
    try:
        with broker_at(server.url, monkeypatch) as broker:
            key, count = Keys(broker.namespace, "email").folded, 120_000
            for start in range(0, count, 5_000):
                broker.client.hset(key, mapping={str(start + n): "1-1\n" for n in range(5_000)})
            taken = 0
            while records := broker.backlog.folded("email", 2_000):
                taken += len(records)
                broker.backlog.forget("email", records)
            assert (taken, broker.client.hlen(key)) == (count, 0)
    finally:
        server.kill()


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
