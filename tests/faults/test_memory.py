"""What is done leaves nothing behind: no key, no entry and no memory that grows with the jobs."""

from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.queues import QUEUES
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.servers import RedisServer, eventually
from tests.starts import ACTORS, nap


@pytest.fixture
def broker(service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """On a server of its own, whose memory is all ours."""
    service.environment["REDIS_URL"] = own_redis.url
    with broker_at(own_redis.url, monkeypatch) as broker:
        yield broker


def sizes(broker: RedisBroker) -> dict[str, int]:
    """Each key of the namespace with its length, but for producers' newest numbers, which expire by themselves."""
    client = broker.client
    length = {"zset": client.zcard, "hash": client.hlen, "stream": client.xlen, "string": lambda key: 1}
    found: dict[str, int] = {}
    for key in client.scan_iter(f"*{broker.namespace}:*"):
        if b":producer:" in key:
            assert 0 < client.ttl(key) <= 3600
        else:
            kind = client.type(key).decode()
            if kind != "none":  # it has expired since it was seen
                found[key.decode()] = length[kind](key)
    return found


def used_bytes(broker: RedisBroker) -> int:
    memory = broker.client.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_clients_normal"]) - int(memory.get("mem_aof_buffer", 0))


@pytest.mark.parametrize(
    ("cycles", "jobs"), [(3, 1000), pytest.param(5, 100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_after_each_drain_redis_is_as_empty_as_before(
    service: Service, broker: RedisBroker, database_url: str, cycles: int, jobs: int
) -> None:
    """Case 02-D27."""
    service.environment["DATABASE_URL"] = database_url
    service.start("projector", "callboard", "projector")
    service.start("worker", "callboard", "worker", **ACTORS)
    eventually(lambda: service.is_ready("projector") and service.is_ready("worker"), 60)

    def is_drained() -> bool:
        return broker.wire.backlog("default") == 0 and not any(
            length for key, length in sizes(broker).items() if key.endswith((":events", ":finals"))
        )

    left: list[dict[str, int]] = []
    used: list[int] = []
    for _ in range(cycles):
        for start in range(0, jobs, 1000):
            assert not broker.send_many([nap() for _ in range(start, min(start + 1000, jobs))]).failed
        eventually(is_drained, 60 + jobs / 100)
        left.append(sizes(broker))
        # Without the buffers of connections, which come and go with the load.
        eventually(lambda: not used or used_bytes(broker) < used[0] * 1.05)
        used.append(used_bytes(broker))
    counted = {f"{{{broker.namespace}:default}}:counter", f"{{{broker.namespace}:default}}:events"}
    waiting = {f"{{{broker.namespace}:{queue}}}:waiters" for queue in QUEUES} | {f"{broker.namespace}:workers"}
    assert all(counted <= set(each) <= counted | waiting for each in left), "all that is left"
    assert all(length <= 1 for each in left for length in each.values()), "one worker waits; the stream is empty"
    assert broker.client.memory_usage(Keys(broker.namespace, "default").events) < 4096
