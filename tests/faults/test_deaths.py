"""The callback of a death is called once, whatever the job died of and whoever is killed when."""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import psutil
import pytest

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.keys import Keys
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import eventually

ACTORS = {"CALLBOARD_ACTORS": "dead_jobs", "CALLBOARD_LEASE_SECONDS": "1"}


def told(service: Service) -> list[str]:
    return [line.split()[0].removeprefix("told-") for line in service.notes() if line.startswith("told-")]


def untold(broker: RedisBroker) -> int:
    return broker.client.zcard(Keys(broker.namespace, "default").untold)


def test_whatever_a_job_dies_of_its_callback_is_called_once(service: Service, broker: RedisBroker) -> None:
    services = [service.start_worker(name, **ACTORS) for name in ("first", "second")]
    assert all(each.poll() is None for each in services)
    failed = send(broker, "dead.die", "error")
    outdated = send(broker, "dead.die", "late")
    misfit = send(broker, "dead.die")
    limited = outdated.copy(message_id=failed.message_id[:-4] + "0000", options={"max_age": 1}, message_timestamp=1000)
    broker.send(limited)
    slow = outdated.copy(message_id=failed.message_id[:-4] + "0001", args=("time",), options={"time_limit": 500})
    broker.send(slow)
    expected = {
        f"{failed.message_id}-failed-1",
        f"{outdated.message_id}-failed-1",
        f"{misfit.message_id}-invalid-1",
        f"{limited.message_id}-expired-1",
        f"{slow.message_id}-timed-out-1",
    }
    eventually(lambda: expected <= set(told(service)))
    eventually(lambda: untold(broker) == 0)
    time.sleep(1)
    assert sorted(told(service)) == sorted(expected)


def test_the_callback_gets_the_whole_record(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", **ACTORS)
    message = send(broker, "dead.all", n=7)
    file = service.folder / "told"
    eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    [line] = file.read_text().splitlines()
    letter = DeadLetters(broker).get(message.message_id)
    assert letter is not None
    assert json.loads(line) == letter.to_dict()
    assert (letter.error["type"], letter.error["message"]) == ("service.errors.Permanent", "no 7")
    host, pid, _ = letter.attempts[0]["worker"].split(":")
    assert host
    assert psutil.pid_exists(int(pid))


@pytest.mark.timeout(180)
def test_of_a_job_that_kills_its_workers_too(service: Service, broker: RedisBroker) -> None:
    killer = send(broker, "dead.die", "kill")
    service.start("worker", "callboard", "worker", "--processes", "2", "--threads", "4", "default", **ACTORS)
    service.start_worker("callbacks", "-Q", "high-priority", **ACTORS)
    eventually(lambda: state_of(broker, killer) == "dead", 90)
    eventually(lambda: told(service) != [], 60)
    time.sleep(1)
    assert told(service) == [f"{killer.message_id}-crashed-3"]
    letter = DeadLetters(broker).get(killer.message_id)
    assert letter is not None
    assert len({attempt["worker"] for attempt in letter.attempts}) >= 2, "each with the worker that died of it"


@pytest.mark.timeout(180)
def test_a_worker_that_is_killed_before_it_tells_is_followed_by_another(service: Service, broker: RedisBroker) -> None:
    """The worker dies at every point between the death and the end of the telling; the callback is called once."""
    messages = [send(broker, "dead.die", f"e{number}") for number in range(40)]
    worker = service.start_worker("first", "-Q", "default", **ACTORS)
    eventually(lambda: any(line.startswith("die-") for line in service.notes()))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    service.start_worker("second", **ACTORS)
    eventually(lambda: all(state_of(broker, message) == "dead" for message in messages), 60)
    eventually(lambda: untold(broker) == 0, 60)
    eventually(lambda: len(told(service)) >= 40, 30)
    time.sleep(1)
    jobs = [line.rsplit("-", 2)[0] for line in told(service)]
    assert sorted(jobs) == sorted(message.message_id for message in messages)


def test_a_death_that_nobody_was_told_of_is_told_by_the_next_worker(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", "-Q", "default", **ACTORS)
    message = send(broker, "dead.die", "error")
    eventually(lambda: untold(broker) == 0 and state_of(broker, message) == "dead")
    letter = DeadLetters(broker).get(message.message_id)
    assert letter is not None
    # As after a kill between the send of the callback and the end of the note: told once more, under the same id.
    broker.client.zadd(Keys(broker.namespace, "default").untold, {f"{letter.died_ms} {message.message_id}": 1})
    service.start_worker("second", **ACTORS)
    eventually(lambda: untold(broker) == 0)
    time.sleep(1)
    assert told(service) == [f"{message.message_id}-failed-1"]


def test_an_idle_worker_tells_what_another_has_left(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", **{**ACTORS, "CALLBOARD_LEASE_SECONDS": "3"})
    message = send(broker, "dead.die", "error")
    eventually(lambda: untold(broker) == 0 and len(told(service)) == 1)
    letter = DeadLetters(broker).get(message.message_id)
    assert letter is not None
    left = {f"{letter.died_ms} {message.message_id}": time.time() * 1000 + 500}
    broker.client.zadd(Keys(broker.namespace, "default").untold, left)
    eventually(lambda: untold(broker) == 0, 10)
    assert len(told(service)) == 1, "under the id that was taken before"


def test_a_replay_survives_the_kill_of_the_worker_and_runs_to_its_end(service: Service, broker: RedisBroker) -> None:
    letters = DeadLetters(broker)
    worker = service.start_worker("first", **ACTORS)
    messages = [send(broker, "dead.die", "error") for _ in range(20)]
    eventually(lambda: all(letters.get(message.message_id) for message in messages))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    report = letters.replay_many(by="ada", request="r")
    again = letters.replay_many(by="ada", request="r")
    assert (report.replayed, again.replayed) == (20, 20)
    assert broker.wire.backlog("default") == 20
    second = service.start_worker("second", **ACTORS)
    eventually(lambda: any(letters.get(message.message_id) for message in messages))
    second.kill()
    service.start_worker("third", **ACTORS)
    eventually(lambda: all(letters.get(message.message_id) for message in messages), 60)
    for message in messages:
        letter = letters.get(message.message_id)
        assert letter is not None
        assert len(letter.replays) == 1
        assert letters.replay(letter, by="ada", request="r") is Replay.DONE_BEFORE


@pytest.mark.parametrize(("how", "attempts"), [("retry-after", ["later-1", "later-2"]), ("snooze", ["later-1"] * 3)])
def test_a_job_asks_when_it_is_to_run_again(
    service: Service, broker: RedisBroker, how: str, attempts: list[str]
) -> None:
    service.start_worker("worker", **ACTORS)
    send(broker, "dead.later", how=how)

    def starts() -> list[tuple[str, float]]:
        return [(line.split()[0], float(line.split()[2])) for line in service.notes()]

    eventually(lambda: len(starts()) >= len(attempts))
    assert [word for word, _ in starts()][: len(attempts)] == attempts
    assert 0.2 <= starts()[1][1] - starts()[0][1] < 5


def test_a_callback_that_nobody_knows_stops_the_worker_at_its_start(
    broker: RedisBroker, start_worker: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    @dramatiq.actor(broker=broker, actor_name="t.orphan", on_dead="t.nobody")
    def orphan() -> None: ...

    with pytest.raises(SystemExit) as ended:
        start_worker()
    assert ended.value.code == 78
    assert "t.orphan: on_dead='t.nobody' names no actor" in capsys.readouterr().err
