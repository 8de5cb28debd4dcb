"""The worker's two commands, as processes: queues, signals, death, outage, reload."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from service.broker import RedisBroker
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually


def test_dramatiq_alone_is_a_working_worker(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", "--queues", "default")
    message = send(broker, "sample.note", word="alone")
    eventually(lambda: state_of(broker, message) == "succeeded")
    assert service.notes() == ["alone"]


def test_an_unknown_queue_ends_the_worker_with_the_known_ones(service: Service) -> None:
    process = service.start("worker", "dramatiq", "service.actors", "--processes", "1", "--queues", "emial")
    assert process.wait(20) != 0
    assert "Unknown queue emial; known queues: email, default" in service.log("worker")


def test_a_server_that_loses_jobs_is_warned_of_or_refused(service: Service, own_redis: RedisServer) -> None:
    with own_redis.client() as control:
        control.config_set("maxmemory-policy", "allkeys-lru")
        control.config_set("appendonly", "no")
    service.environment["REDIS_URL"] = own_redis.url
    service.start_worker("warned")
    # The dramatiq command passes the lines of its processes on, and may be behind.
    eventually(lambda: "maxmemory-policy is allkeys-lru" in service.log("warned"))
    eventually(lambda: "appendonly is off" in service.log("warned"))
    command = ("dramatiq", "service.actors", "--processes", "1")
    refused = service.start("refused", *command, CALLBOARD_REDIS_CHECK="refuse")
    assert refused.wait(20) != 0
    eventually(lambda: "does not start on this server" in service.log("refused"))


def test_a_worker_takes_only_the_queues_that_it_is_given(service: Service, broker: RedisBroker) -> None:
    service.start_worker("worker", "--queues", "email")
    other = send(broker, "sample.note", word="not mine")
    time.sleep(1.5)
    assert state_of(broker, other) == "pending"


def test_sigterm_lets_running_jobs_finish_and_starts_no_more(service: Service, broker: RedisBroker) -> None:
    process = service.start_worker("worker", "--threads", "1")
    first = send(broker, "sample.slow", word="a", seconds=2)
    eventually(lambda: "start a" in service.notes())
    second = send(broker, "sample.slow", word="b", seconds=2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert state_of(broker, first) == "succeeded"
    assert service.notes() == ["start a", "end a"]
    assert state_of(broker, second) == "pending"
    service.start_worker("next")
    eventually(lambda: state_of(broker, second) == "succeeded")


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)])
def test_a_second_signal_changes_nothing(
    service: Service, broker: RedisBroker, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    process = service.start_worker("worker", "--threads", "1")
    message = send(broker, "sample.slow", word="a", seconds=4)
    eventually(lambda: "start a" in service.notes())
    for number in numbers:
        os.killpg(process.pid, number)
        time.sleep(0.5)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0
    assert service.notes() == ["start a", "end a"]
    assert state_of(broker, message) == "succeeded"


def test_a_failure_is_logged_with_its_job_and_error_and_without_its_payload(
    service: Service, broker: RedisBroker
) -> None:
    service.start_worker("worker")
    message = send(broker, "sample.flaky", succeeds_at=987654)
    eventually(lambda: state_of(broker, message) == "dead")
    assert message.message_id in service.log("worker")
    assert "ConnectionError: not yet" in service.log("worker")
    assert "987654" not in service.log("worker")


def test_a_mistake_in_an_actor_stops_the_worker_with_its_place(service: Service) -> None:
    (service.folder / "wrong_jobs.py").write_text(
        "from service.job import job\n\n@job(name='wrong.one', queue='default')\ndef one(x) -> None: ...\n"
    )
    path = os.pathsep.join([str(service.folder), service.environment["PYTHONPATH"]])
    command = ("dramatiq", "service.actors", "--processes", "1")
    process = service.start("worker", *command, PYTHONPATH=path, CALLBOARD_ACTORS="wrong_jobs")
    assert process.wait(20) != 0
    assert "the parameter 'x' needs a type annotation (wrong_jobs.one," in service.log("worker")
    assert "wrong_jobs.py:3)" in service.log("worker")
    assert "Traceback" not in service.log("worker")


def test_a_worker_without_redis_says_where_it_looks_and_is_ready_when_it_answers(
    service: Service, own_redis: RedisServer
) -> None:
    own_redis.kill()
    service.environment["REDIS_URL"] = own_redis.url
    service.start("worker", "dramatiq", "service.actors", "--processes", "1", "--threads", "2")
    eventually(lambda: service.is_alive("worker"), 30)
    eventually(lambda: f"Redis at 127.0.0.1:{own_redis.port} can't be reached" in service.log("worker"))
    assert not service.is_ready("worker")
    time.sleep(2)
    assert service.log("worker").count("can't be reached") <= 3, "one line for all consumers, and a pause between"
    own_redis.start()
    eventually(lambda: service.is_ready("worker"))
    assert f"Redis at 127.0.0.1:{own_redis.port} answers again" in service.log("worker")
    own_redis.kill()
    eventually(lambda: not service.is_ready("worker"))
    assert service.is_alive("worker"), "a restart would not mend it"


def test_a_failure_during_an_outage_of_redis_is_not_lost(
    service: Service, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.environment["REDIS_URL"] = own_redis.url
    service.start_worker()
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    from service.middleware import chain
    from service.settings import load_settings

    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    message = send(broker, "sample.slow", word="a", seconds=1.5)
    eventually(lambda: "start a" in service.notes())
    time.sleep(1.1)  # what `appendfsync everysec` may lose is on disk
    own_redis.kill()
    eventually(lambda: "end a" in service.notes())
    own_redis.start()
    eventually(lambda: state_of(broker, message) == "succeeded", 30)
    assert service.notes() == ["start a", "end a"]
    broker.close()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"REDIS_URL": ""}, "REDIS_URL is not set; for example: REDIS_URL=redis://"),
        ({"REDIS_URL": "http://user:hunter2@host"}, "REDIS_URL='http://user:***@host' is wrong"),
        ({"CALLBOARD_WORKER_PORT": "high"}, "CALLBOARD_WORKER_PORT='high' is wrong"),
        ({"CALLBOARD_ACTORS": "no_such_module"}, "CALLBOARD_ACTORS='no_such_module' is wrong"),
        ({"CALLBOARD_ACTORS": ".jobs"}, "CALLBOARD_ACTORS='.jobs' is wrong"),
        ({"CALLBOARD_ACTORS": ","}, "CALLBOARD_ACTORS=',' is wrong"),
    ],
)
def test_a_wrong_setting_stops_the_worker_with_a_message(
    service: Service, variables: dict[str, str], expected: str
) -> None:
    process = service.start("worker", "dramatiq", "service.actors", "--processes", "1", **variables)
    assert process.wait(30) != 0
    assert expected in service.log("worker")
    assert "Traceback" not in service.log("worker")
    assert "hunter2" not in service.log("worker")


def test_callboard_worker_keeps_its_processes_and_replaces_one_that_died(service: Service, broker: RedisBroker) -> None:
    supervisor = service.start("worker", "callboard", "worker", "default", "--processes", "2", "--threads", "2")
    eventually(lambda: len(masters(supervisor.pid)) == 2 and service.is_ready("worker"), 30)
    victim = masters(supervisor.pid)[0]
    orphans = victim.children(recursive=True)
    os.kill(victim.pid, signal.SIGKILL)
    eventually(lambda: len({p.pid for p in masters(supervisor.pid)} - {victim.pid}) == 2, 30)
    _, alive = psutil.wait_procs(orphans, timeout=10)
    assert not alive, "what the dead one had started goes with it"
    message = send(broker, "sample.note", word="still here")
    eventually(lambda: state_of(broker, message) == "succeeded", 30)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 0
    assert masters(supervisor.pid) == []


def masters(supervisor_pid: int) -> list[psutil.Process]:
    try:
        children = psutil.Process(supervisor_pid).children()
        return [child for child in children if any("dramatiq" in part for part in child.cmdline())]
    except psutil.Error:
        return []


def test_watch_reloads_a_worker_whose_source_changed(service: Service, broker: RedisBroker) -> None:
    source = service.folder / "jobs_being_written.py"
    text = """
from service.job import job
@job(name="draft.answer", queue="default")
def answer() -> int:
    return ANSWER
"""
    source.write_text(text.replace("ANSWER", "41"))
    service.start_worker(
        "worker",
        "--watch",
        str(service.folder),
        PYTHONPATH=os.pathsep.join([str(service.folder), service.environment["PYTHONPATH"]]),
        CALLBOARD_ACTORS=source.stem,
    )
    first = send(broker, "draft.answer")
    eventually(lambda: state_of(broker, first) == "succeeded")
    eventually(lambda: (broker.find_record(first.message_id) or {})["result"] == "41")
    source.write_text(text.replace("ANSWER", "4200"))

    def answers_anew() -> bool:
        message = send(broker, "draft.answer")
        eventually(lambda: state_of(broker, message) == "succeeded")
        return (broker.find_record(message.message_id) or {})["result"] == "4200"

    eventually(answers_anew, 30)


def test_importing_actors_needs_no_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import actors.email; from service.broker import broker; print(broker.known_types)"],
        env={},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "email.send" in done.stdout


def test_a_send_without_an_environment_says_what_is_missing(tmp_path: Path) -> None:
    program = "from actors.email import send_email as s, EmailJobPayload as P;" + (
        "s.send(P(to='a@example.org', subject='x', template_id='welcome'))"
    )
    done = subprocess.run([sys.executable, "-c", program], env={}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert "REDIS_URL is not set; for example: REDIS_URL=redis://" in done.stderr


def test_dead_workers_jobs_come_back_after_their_lease(service: Service, broker: RedisBroker) -> None:
    process = service.start_worker("first", CALLBOARD_LEASE_SECONDS="2")
    message = send(broker, "sample.slow", word=uuid.uuid4().hex, seconds=3)
    eventually(lambda: len(service.notes()) == 1)
    os.killpg(process.pid, signal.SIGKILL)
    service.start_worker("second", CALLBOARD_LEASE_SECONDS="2")
    eventually(lambda: state_of(broker, message) == "succeeded", 40)
    assert [note.split()[0] for note in service.notes()] == ["start", "start", "end"]
    eventually(lambda: broker.wire.backlog("default") == 0)
