"""Redis loses all it has while producers, workers and the projector work: `callboard rebuild` brings it back."""

import re
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dramatiq.message import Message
from sqlalchemy import Engine, select

from service.access.tables import audit
from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.state.database import engine_for
from service.state.tables import jobs
from tests.brokers import broker_at
from tests.e2e.conftest import BIN, Service
from tests.servers import RedisServer, eventually

GUIDE = Path(__file__).parents[2] / "docs" / "lost-redis.md"
ENDS = {"succeeded", "dead", "cancelled"}


@pytest.fixture
def lossy(
    service: Service, own_redis: RedisServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisBroker]:
    """A broker on a server of this test's own, with worker and projector beside it."""
    service.environment |= {"REDIS_URL": own_redis.url, "DATABASE_URL": database_url, "CALLBOARD_ACTORS": "lost_jobs"}
    with broker_at(own_redis.url, monkeypatch) as broker:
        service.start("projector", "callboard", "projector")
        service.start_worker("worker")
        yield broker


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = engine_for(database_url)
    yield engine
    engine.dispose()


class Producer:
    """Sends small jobs until it is stopped, through whatever happens to Redis."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: dict[str, float] = {}

    def send(self, actor: str, queue: str = "default", delay_ms: int | None = None, **options: Any) -> str:
        message: Message = Message(queue, actor, (), {}, options)
        message = message.copy(kwargs={"word": message.message_id})
        self._broker.send(message, delay_ms=delay_ms)
        self.sent[message.message_id] = time.monotonic()
        return message.message_id

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.send("lost.work")

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def rows(engine: Engine) -> dict[str, Any]:
    columns = (jobs.c.job_id, jobs.c.state, jobs.c.type, jobs.c.attempt, jobs.c.skipped)
    with engine.connect() as connection:
        return {str(row.job_id): row for row in connection.execute(select(*columns))}


def rebuild(service: Service, *options: str) -> subprocess.CompletedProcess[str]:
    command = [BIN / "callboard", "rebuild", *options]
    return subprocess.run(command, env=service.environment, capture_output=True, text=True, cwd=service.folder)


def starts(service: Service) -> Counter[str]:
    return Counter(note.split()[0] for note in service.notes())


def test_all_that_the_database_had_seen_ends_as_it_should(
    service: Service, own_redis: RedisServer, lossy: RedisBroker, engine: Engine
) -> None:
    with Producer(lossy) as producer:
        keyed = producer.send("lost.work", idempotency_key="k")
        special = [producer.send("lost.work", delay_ms=15_000) for _ in range(20)]
        special += [producer.send("lost.mends", queue="email") for _ in range(10)]
        dead = [producer.send("lost.dies") for _ in range(10)]
        eventually(lambda: {row.state for job, row in rows(engine).items() if job in dead} == {"dead"}, 30)
        eventually(lambda: {*special, *dead} <= rows(engine).keys() and len(producer.sent) > 300, 30)
        # So much at once that many wait and run at the moment of the loss.
        burst = [Message("default", "lost.work", (), {}, {}) for _ in range(600)]
        burst = [message.copy(kwargs={"word": message.message_id}) for message in burst]
        assert not lossy.send_many(burst).failed
        eventually(lambda: {message.message_id for message in burst} <= rows(engine).keys(), 30)
        with own_redis.client() as control:
            lost_at = time.monotonic()
            control.flushall()
        eventually(lambda: any(at > lost_at for at in producer.sent.values()))
        time.sleep(0.5)  # what the projector had read before is stored, and jobs are sent to the emptied server
        seen, run_before = rows(engine), starts(service)
        assert sum(row.state not in ENDS for row in seen.values()) > 100
        told = rebuild(service, "--why", "it was flushed")
    assert told.returncode == 0, told.stderr
    assert re.search(r"^\d+ default pending$", told.stdout, re.MULTILINE), told.stdout
    assert "20 default scheduled\n" in told.stdout
    assert "10 default dead\n" in told.stdout
    assert "1 idempotency keys came back" in told.stdout

    def all_have_ended() -> bool:
        now = rows(engine)
        return all(now[job_id].state in ENDS for job_id in seen)

    eventually(all_have_ended, 90)
    now, runs = rows(engine), starts(service)
    assert Counter(now[job_id].state for job_id in seen) == {"succeeded": len(seen) - len(dead), "dead": len(dead)}
    assert {job_id for job_id in seen if now[job_id].state == "dead"} == set(dead)
    done_before = [job for job, row in seen.items() if row.state == "succeeded" and row.type == "lost.work"]
    assert len(done_before) > 100
    assert {job: runs[f"start-{job}"] for job in done_before if runs[f"start-{job}"] != 1} == {}
    assert {job: run_before[f"start-{job}"] for job in done_before if run_before[f"start-{job}"] != 1} == {}
    assert all(runs[f"dies-{job_id}"] == 1 for job_id in dead)
    assert all(runs[f"end-{job_id}"] >= 1 for job_id in seen if job_id not in dead)
    # What ran at the moment, or had ended and was not told yet, has run again: no more than once.
    assert all(runs[f"start-{job_id}"] <= 2 for job_id in seen)
    # What nobody knows of was sent just before the loss.
    unseen = [job_id for job_id in producer.sent if job_id not in now]
    assert all(lost_at - 2 < producer.sent[job_id] < lost_at + 0.5 for job_id in unseen)
    assert {letter.job_id for letter in DeadLetters(lossy).page(limit=100).letters} == set(dead)
    duplicate = producer.send("lost.work", idempotency_key="k")
    eventually(lambda: duplicate in rows(engine) and rows(engine)[duplicate].state == "succeeded")
    assert rows(engine)[duplicate].skipped
    assert runs[f"start-{keyed}"] == 1
    again = rebuild(service)
    assert again.stdout.startswith("0 jobs came back\n"), again.stdout
    with engine.connect() as connection:
        [first, _] = connection.execute(select(audit).order_by(audit.c.id)).all()
    assert (first.what, first.why, first.status) == ("callboard rebuild", "it was flushed", 200)
    assert first.count == int(re.findall(r"^(\d+) jobs came back$", told.stdout, re.MULTILINE)[0])


def documented() -> list[list[str]]:
    """The commands of the guide, each without the program."""
    [block] = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    sourced, *lines = block.splitlines()
    assert sourced == ". .callboard/env"
    commands = [shlex.split(line) for line in lines]
    assert all(command[:2] == [".venv/bin/callboard", "rebuild"] for command in commands)
    return [command[2:] for command in commands]


def test_the_commands_of_the_guide_say_what_would_come_back_and_what_can_not(
    service: Service, own_redis: RedisServer, lossy: RedisBroker, engine: Engine
) -> None:
    producer = Producer(lossy)
    waiting = [producer.send("lost.work", delay_ms=3_600_000) for _ in range(3)]
    eventually(lambda: set(waiting) <= rows(engine).keys())
    with engine.begin() as connection:
        connection.execute(jobs.update().where(jobs.c.job_id == waiting[0]).values(message=None))
    with own_redis.client() as control:
        control.flushall()
    dry, real = documented()
    told = rebuild(service, *dry)
    assert told.returncode == 1
    assert told.stdout.startswith("2 default scheduled\n2 jobs would come back\n"), told.stdout
    assert f"not restored: {waiting[0]} default scheduled: the database has no message of it" in told.stdout
    assert lossy.find_record(waiting[1]) is None
    assert rebuild(service, *real).stdout.startswith("2 default scheduled\n2 jobs came back\n")
    assert [lossy.find_record(job_id) is not None for job_id in waiting] == [False, True, True]
