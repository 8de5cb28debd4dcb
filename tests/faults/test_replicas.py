"""A primary is made a replica, for a while or for good: every part of the service leaves it, and works on by itself."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from service.broker import RedisBroker
from service.errors import BrokerUnavailable
from service.middleware import chain
from service.settings import load_settings
from tests.e2e.conftest import Service
from tests.jobs import send
from tests.proxy import Proxy, proxy_to
from tests.servers import RedisServer, eventually, free_port

SERVICE = {
    "CALLBOARD_ACTORS": "fault_jobs,outages_jobs",
    "CALLBOARD_SCHEDULES": "outages_jobs:SCHEDULES",
    "CALLBOARD_REDIS_TIMEOUT_SECONDS": "2",
}


class Sender(threading.Thread):
    """Sends 20 jobs a second, and keeps apart what was stored and what was refused."""

    def __init__(self, broker: RedisBroker) -> None:
        super().__init__()
        self.broker = broker
        self.stored: list[str] = []
        self.refused: list[BrokerUnavailable] = []
        self._stop_sending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_sending.wait(0.05):
            number += 1
            try:
                self.stored.append(send(self.broker, "fault.good", f"j{number}", 0.01).message_id)
            except BrokerUnavailable as error:
                self.refused.append(error)

    def stop(self) -> None:
        self._stop_sending.set()
        self.join()


@pytest.fixture
def old_primary(own_redis: RedisServer) -> RedisServer:
    return own_redis


@pytest.fixture
def new_primary(old_primary: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "new"
    folder.mkdir()
    server = RedisServer(old_primary.program, folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def proxy(old_primary: RedisServer) -> Iterator[Proxy]:
    with proxy_to(old_primary.port) as proxy:
        yield proxy


@pytest.fixture
def broker(proxy: Proxy, service: Service, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """Of this process, beside a worker, a scheduler, a projector and an API: all of them on the address that moves."""
    service.environment |= SERVICE | {"REDIS_URL": proxy.url, "DATABASE_URL": database_url}
    monkeypatch.setenv("REDIS_URL", proxy.url)
    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    service.start("scheduler", "callboard", "scheduler")
    service.start("worker", "callboard", "worker", "default")
    service.start_api()
    eventually(lambda: service.is_ready("scheduler") and service.is_ready("worker"), 30)
    yield broker
    broker.close()


def ticks(service: Service) -> int:
    return sum(line.startswith("tick ") for line in service.notes())


def every_part_works(service: Service, sender: Sender) -> bool:
    """Whether something sent from now on, each way, is run and stored."""
    ticked, stored = ticks(service), len(sender.stored)
    for name in ("worker", "scheduler", "projector"):
        eventually(lambda name=name: service.is_ready(name), 15)
    eventually(lambda: service.call("/jobs", {"type": "outage.die", "payload": {"word": "api"}})[0] == 202, 15)
    eventually(lambda: ticks(service) > ticked and len(sender.stored) > stored, 15)
    return True


def all_ran_once(service: Service, sender: Sender) -> None:
    """In the database: so the projector goes on too."""
    for job_id in sender.stored:
        assert service.end_of(job_id)["status"] == "succeeded"
    ran = [line.split()[0] for line in service.notes() if line.startswith("start-")]
    assert len(ran) == len(set(ran)) == len(sender.stored)
    assert all(error.may_be_stored is False for error in sender.refused)


def an_idle_worker_is_woken(service: Service, broker: RedisBroker) -> bool:
    """It asks by itself every 10 s only, so that the second of two jobs would have to wait for that long."""
    for word in ("first", "second"):
        send(broker, "outage.die", word)
        eventually(lambda word=word: any(line.startswith(f"die-{word} ") for line in service.notes()), 5)
    return True


def offset(control: redis.Redis, name: str) -> int:
    return control.info("replication")[name]


@pytest.mark.timeout(180)
def test_every_part_leaves_a_replica_and_goes_on(
    service: Service, proxy: Proxy, old_primary: RedisServer, new_primary: RedisServer, broker: RedisBroker
) -> None:
    """Case 02-D30: first a replica for a while, and then an old primary that lives on as one."""
    sender = Sender(broker)
    sender.start()
    with old_primary.client() as old, new_primary.client() as new:
        eventually(lambda: len(sender.stored) > 20)
        old.replicaof("127.0.0.1", free_port())
        eventually(lambda: len(sender.refused) > 60, 30)
        old.replicaof("NO", "ONE")
        assert every_part_works(service, sender)

        new.replicaof("127.0.0.1", old_primary.port)
        eventually(lambda: new.info("replication")["master_link_status"] == "up", 30)
        old.client_pause(1000, all=False)  # writes only, as Sentinel and managed servers do, so that nothing is lost
        eventually(lambda: offset(new, "slave_repl_offset") == offset(old, "master_repl_offset"))
        new.replicaof("NO", "ONE")
        # No connection breaks, and the address leads elsewhere.
        proxy.target = new_primary.port
        old.replicaof("127.0.0.1", new_primary.port)
        assert every_part_works(service, sender)
    sender.stop()
    all_ran_once(service, sender)
    assert an_idle_worker_is_woken(service, broker)
