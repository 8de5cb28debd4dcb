"""Dead letters go by age and by count, and not before they are in the archive."""

import json
import logging
import resource
import threading
from pathlib import Path

import dramatiq
import pytest
from dramatiq.message import Message
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure
from service.broker.settlement import settlement_of
from service.settings import load_settings
from service.state.database import engine_for
from service.state.projector import Projector
from service.state.retention import CHUNK, Retention
from tests.servers import eventually

DAY_MS = 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def _actor(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name="email")
    def act(n: int) -> None: ...


def die(broker: RedisBroker, n: int, age_ms: int = 0, queue: str = "email") -> str:
    message: Message = Message(queue_name=queue, actor_name="t.act", args=(), kwargs={"n": n}, options={})
    broker.send(message)
    [delivery] = broker.fetch(queue, 1)[0]
    delivery.outcome = Dead(Failure("ValueError", "no", "trace"))
    broker.settle(queue, [settlement_of(delivery)])
    broker.client.zincrby(Keys(broker.namespace, queue).dead, -age_ms, message.message_id)
    return message.message_id


def left(broker: RedisBroker) -> set[str]:
    return {letter.job_id for letter in DeadLetters(broker).page(limit=1000).letters}


def archived(folder: Path) -> list[dict]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def readable(line: str) -> dict | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def retention(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, **variables: object) -> Retention:
    for name, value in variables.items():
        monkeypatch.setenv(f"CALLBOARD_{name}", str(value))
    return Retention(broker, load_settings())


def test_what_is_too_old_goes_to_the_archive_and_what_is_not_stays(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = [die(broker, n, 3 * DAY_MS, queue) for n, queue in enumerate(["email", "ai", "email"])]
    young = die(broker, 9, DAY_MS)
    keeper = retention(broker, monkeypatch, DEAD_LETTER_DAYS=2, DEAD_LETTER_ARCHIVE=tmp_path)
    assert keeper.step() == 3
    assert keeper.step() == 0
    assert left(broker) == {young}
    lines = archived(tmp_path)
    assert {line["job_id"] for line in lines} == set(old)
    assert {line["payload"]["kwargs"]["n"] for line in lines} == {0, 1, 2}
    assert lines[0]["error"]["traceback"] == "trace"
    assert not broker.client.exists(Keys(broker.namespace, "ai").dead_letters)


def test_of_too_many_the_oldest_go_in_small_steps(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [die(broker, n, DAY_MS - n) for n in range(CHUNK + 7)]
    keeper = retention(broker, monkeypatch, DEAD_LETTERS_MOST=3)
    assert [keeper.step() for _ in range(3)] == [CHUNK, 4, 0]
    assert left(broker) == set(jobs[-3:])


def test_what_can_not_be_archived_stays(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = die(broker, 1, 3 * DAY_MS)
    folder = tmp_path / "archive"
    folder.mkdir()
    keeper = retention(broker, monkeypatch, DEAD_LETTER_DAYS=2, DEAD_LETTER_ARCHIVE=folder)
    folder.rmdir()
    caplog.set_level(logging.ERROR)
    assert keeper.step() == 0
    assert left(broker) == {job}
    assert "can't be archived" in caplog.text


def test_a_disk_that_is_full_loses_no_record(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = [die(broker, n, 3 * DAY_MS) for n in range(3)]
    keeper = retention(broker, monkeypatch, DEAD_LETTER_DAYS=2, DEAD_LETTER_ARCHIVE=tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))  # in the middle of the first line
    try:
        assert keeper.step() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    [file] = tmp_path.iterdir()
    assert file.stat().st_size == 200
    assert left(broker) == set(jobs)
    assert keeper.step() == 3
    whole = [line for line in map(readable, file.read_text().splitlines()) if line]
    assert {line["job_id"] for line in whole} == set(jobs)
    assert left(broker) == set()


def test_what_nobody_can_read_goes_too(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = Keys(broker.namespace, "email")
    broker.client.zadd(keys.dead, {b"\xff": 1})
    broker.client.hset(keys.dead_letters, b"\xff", b"no JSON")
    keeper = retention(broker, monkeypatch, DEAD_LETTER_ARCHIVE=tmp_path)
    assert keeper.step() == 1
    assert archived(tmp_path) == [{"entry_base64": "/w==", "original_queue": "email"}]
    assert not broker.client.exists(keys.dead, keys.dead_letters)


def test_the_projector_carries_it_out(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    engine: Engine = engine_for(database_url)
    job = die(broker, 1, 3 * DAY_MS)
    young = die(broker, 2)
    stop = threading.Event()
    projector = Projector(broker, engine, retention(broker, monkeypatch, DEAD_LETTER_DAYS=2))
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: job not in left(broker))
    finally:
        stop.set()
        thread.join(10)
        engine.dispose()
    assert left(broker) == {young}
