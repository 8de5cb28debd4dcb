"""Two projectors that are killed, frozen and cut off, on a database that restarts: in the end each row is right."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dramatiq
import psycopg
import pytest
from dramatiq.message import Message
from sqlalchemy import select

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, RetryLater, Succeeded
from service.broker.settlement import settlement_of
from service.state.database import engine_for
from service.state.migrate import upgrade
from service.state.queries import Cursor, Filter, list_jobs
from service.state.tables import jobs
from tests.servers import PostgresServer, eventually, free_port, postgres_flavours

QUEUE = "email"
FAILURE = Failure("ValueError", "no", "")
OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


@pytest.fixture(params=postgres_flavours().items(), ids=lambda item: item[0])
def own_postgres(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("own-postgres"), request.param[1])
    server.start()
    upgrade(server.url)
    yield server
    server.stop()


class Load:
    """Jobs that succeed, fail, die, are replayed and cancelled. Run from a thread until `stop`."""

    def __init__(self, broker: RedisBroker) -> None:
        self.broker = broker
        self.stop = threading.Event()
        self.sent: list[str] = []
        self.ends: dict[str, str] = {}

    def run(self) -> None:
        while not self.stop.is_set():
            report = self.broker.send_many([Message(QUEUE, "t.act", (), {}, {}) for _ in range(20)])
            self.sent += [message.message_id for message in report.stored]
            self.work()
            self.broker.backlog.relieve(QUEUE)  # as a worker's own thread does

    def work(self) -> None:
        for delivery in self.broker.fetch(QUEUE, 200)[0]:
            number, job_id = int(delivery.message_id[:4], 16) % 20, delivery.message_id
            if number < 3 and delivery.attempt < 3:
                delivery.outcome = RetryLater(delivery.copy_for_retry(""), 0, FAILURE)
            else:
                delivery.outcome = Dead(FAILURE) if number == 4 else Succeeded("1")
                self.ends[job_id] = {4: "dead", 5: "cancelled"}.get(number, "succeeded")
            if number == 5:
                JobActs(self.broker).cancel(job_id, by="ada")
            self.broker.settle(QUEUE, [settlement_of(delivery)])
            if number == 4 and (letter := DeadLetters(self.broker).get(job_id)) and int(job_id[4], 16) < 3:
                DeadLetters(self.broker).replay(letter, by="ada", request=job_id)  # once


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("unstored_mb", [1, 64])
def test_each_row_is_right_whatever_dies(
    broker: RedisBroker, environment: dict[str, str], own_postgres: PostgresServer, unstored_mb: int, tmp_path: Path
) -> None:
    dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE)(lambda: None)
    broker.backlog._most_bytes = unstored_mb * 2**20
    more = {"DATABASE_URL": own_postgres.url, "CALLBOARD_UNSTORED_MB": str(unstored_mb)}

    def projector() -> subprocess.Popen[bytes]:
        own = {**os.environ, **environment, **more, "CALLBOARD_WORKER_PORT": str(free_port())}
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "service.cli", "projector"], env=own, stdout=log, stderr=log)

    projectors, load = [projector(), projector()], Load(broker)

    def kill() -> None:
        killed = projectors.pop(0)
        killed.kill()
        killed.wait()
        projectors.append(projector())

    def freeze() -> None:
        one = random.choice(projectors)
        one.send_signal(signal.SIGSTOP)
        threading.Timer(1, lambda: one.send_signal(signal.SIGCONT)).start()

    def cut() -> None:
        with suppress(psycopg.Error), psycopg.connect(own_postgres.url, autocommit=True) as connection:
            connection.execute(OTHERS)

    def restart() -> None:
        own_postgres.stop()
        time.sleep(random.uniform(0, 1.5))
        own_postgres.start()

    faults: list[Callable[[], None]] = [kill, kill, freeze, cut, restart]
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.2, 1.2))
            random.choice(faults)()
        load.stop.set()
        thread.join(60)
        while broker.wire.backlog(QUEUE):
            load.work()
        eventually(lambda: is_empty(broker), 120)
    finally:
        load.stop.set()
        for one in projectors:
            one.kill()
            one.wait()
        thread.join(60)
    engine = engine_for(own_postgres.url)
    with engine.connect() as connection:
        stored = {str(row.job_id): row.state for row in connection.execute(select(jobs.c.job_id, jobs.c.state))}
    assert set(stored) == set(load.sent)
    assert {job_id: stored[job_id] for job_id in load.ends} == load.ends
    # Jobs of one send were created in one millisecond.
    listed: list[str] = []
    cursor: Cursor | None = None
    while True:
        page = list_jobs(engine, Filter(), cursor, 97)
        listed += [str(job.job_id) for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert sorted(listed) == sorted(load.sent)
    engine.dispose()


def is_empty(broker: RedisBroker) -> bool:
    keys = Keys(broker.namespace, QUEUE)
    return not broker.client.exists(keys.folded, keys.finals) and not broker.client.xlen(keys.events)
