"""Pods are stopped under load, in the kubelet's order: no job is lost, none is doubled where the grace suffices."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.workers import live_workers
from tests.brokers import broker_at
from tests.deploy.kubelet import Kubelet, Pod, processes_of
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import RedisServer, eventually

PLAIN = ("dramatiq", "service.actors", "--processes", "2", "--threads", "2", "--queues", "default")


def words(service: Service) -> Counter[str]:
    return Counter(note.split()[0] for note in service.notes())


def attempts(broker: RedisBroker, messages: list[Message[Any]]) -> set[str]:
    return {(broker.find_record(message.message_id) or {})["attempt"] for message in messages}


def ask(pod: Pod, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{pod.service.ports[pod.name]}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Load:
    """Sends short jobs all the time, and notes when."""

    def __init__(self, broker: RedisBroker) -> None:
        self.messages: list[Message[Any]] = []
        self.sent_at: list[float] = []
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.sent_at.append(time.time())
            self.messages.append(send(self._broker, "fault.good", f"j{len(self.messages)}", 0.15))

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def load(broker: RedisBroker) -> Iterator[Load]:
    load = Load(broker)
    yield load
    load.end()


def test_a_rolling_update_loses_and_doubles_nothing_and_no_job_waits(
    kubelet: Kubelet, broker: RedisBroker, load: Load
) -> None:
    old = [kubelet.start(f"old-{number}") for number in range(2)]
    began = len(load.messages)
    for number, pod in enumerate(old):
        kubelet.start(f"new-{number}")  # first: it is ready before the old one is stopped
        deletion = pod.delete(grace_seconds=10)
        assert (deletion.hook_code, deletion.code) == (0, 0), deletion
        assert "drained after" in deletion.said
    load.end()
    eventually(lambda: state_of(broker, load.messages[-1]) == "succeeded")
    eventually(lambda: broker.wire.backlog("default") == 0)
    assert len(load.messages) > began + 20, "there was load"
    assert set(words(kubelet.service).values()) == {1}
    assert len(words(kubelet.service)) == 2 * len(load.messages)
    assert attempts(broker, load.messages) == {"1"}
    started_at = {note.split()[0]: float(note.split()[2]) for note in kubelet.service.notes()}
    waits = [started_at[f"start-j{number}"] - load.sent_at[number] for number in range(began, len(load.messages))]
    assert max(waits) < 2.0, "the queue always had a consumer"


@pytest.mark.parametrize("command", [(), PLAIN], ids=["callboard worker", "dramatiq"])
def test_a_pod_that_is_scaled_in_finishes_what_it_runs_and_says_that_it_drains(
    kubelet: Kubelet, broker: RedisBroker, command: tuple[str, ...]
) -> None:
    pod = kubelet.start("leaving", *command)
    eventually(lambda: len(processes_of(pod)) == (2 if command else 1))
    messages = [send(broker, "fault.good", f"j{number}", 4.5) for number in range(6)]
    eventually(lambda: len(words(kubelet.service)) == 4)
    with ThreadPoolExecutor() as pool:
        deleted = pool.submit(pod.delete, 15)
        eventually(lambda: ask(pod, "/readyz")[0] == 503)
        state = json.loads(ask(pod, "/readyz")[1])
        assert (state["status"], state["running"]) == ("draining", 2 if command else 4)
        assert "callboard_worker_draining 1.0" in ask(pod, "/metrics")[1]
        assert ask(pod, "/livez")[0] == 200
        leaving = set(processes_of(pod))
        eventually(lambda: {worker.pid for worker in live_workers(broker) if worker.draining} >= leaving)
        deletion = deleted.result()
    assert (deletion.hook_code, deletion.code) == (0, 0), deletion
    assert 1 < deletion.hook_seconds < 12, "it waited for the jobs, and no longer"
    kubelet.start("staying")
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages))
    assert set(words(kubelet.service).values()) == {1}
    assert attempts(broker, messages) == {"1"}


def test_a_short_grace_gives_back_what_runs_longer_with_no_attempt_counted(
    kubelet: Kubelet, broker: RedisBroker
) -> None:
    pod = kubelet.start("node-1", CALLBOARD_GRACE_SECONDS="6")
    messages = [send(broker, "fault.good", f"long{number}", 6.0) for number in range(2)]
    eventually(lambda: len(words(kubelet.service)) == 2)
    short = send(broker, "fault.good", "short", 0.5)
    deletion = pod.delete(grace_seconds=6)
    assert "Drain: not over after" in deletion.said
    assert deletion.hook_code == 1
    kubelet.start("node-2")
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in [*messages, short]), 20)
    assert words(kubelet.service)["end-short"] == 1
    assert attempts(broker, [*messages, short]) == {"1"}
    assert {words(kubelet.service)[f"end-long{number}"] for number in range(2)} == {1}


def test_a_drain_that_is_killed_half_way_leaves_the_rest_to_sigterm(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("leaving")
    messages = [send(broker, "fault.good", f"j{number}", 2.5) for number in range(6)]
    eventually(lambda: len(words(kubelet.service)) == 4)
    with ThreadPoolExecutor() as pool:
        deleted = pool.submit(pod.delete, 12)
        eventually(lambda: ask(pod, "/readyz")[0] == 503)
        assert pod.hook
        pod.hook.kill()
        deletion = deleted.result()
    assert (deletion.hook_code, deletion.code) == (-signal.SIGKILL, 0)
    kubelet.start("next")
    eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages))
    assert set(words(kubelet.service).values()) == {1}
    assert attempts(broker, messages) == {"1"}


def test_a_drain_that_overruns_has_given_back_all_before_the_end(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("leaving", CALLBOARD_GRACE_SECONDS="4.5")
    message = send(broker, "fault.good", "long", 5.0)
    eventually(lambda: len(words(kubelet.service)) == 1)
    # A hook of somebody who has not done the sum: the kubelet ends it.
    deletion = pod.delete(4.5, ("sh", "-c", "callboard drain --timeout 60; sleep 60"))
    assert deletion.hook_code is None
    assert state_of(broker, message) == "pending", "also where two seconds are too few to end in"
    kubelet.start("next")
    eventually(lambda: state_of(broker, message) == "succeeded")
    assert words(kubelet.service) == {"start-long": 2, "end-long": 1}
    assert attempts(broker, [message]) == {"1"}


def test_a_drain_reaches_its_workers_while_redis_is_down(
    kubelet: Kubelet, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet.service.environment["REDIS_URL"] = own_redis.url
    with broker_at(own_redis.url, monkeypatch) as broker:
        pod = kubelet.start("leaving")
        messages = [send(broker, "fault.good", f"j{number}", 2.0) for number in range(5)]
        eventually(lambda: len(words(kubelet.service)) == 4)
        time.sleep(1.1)  # what `appendfsync everysec` may lose is on disk
        own_redis.kill()
        with ThreadPoolExecutor() as pool:
            deleted = pool.submit(pod.delete, 20)
            eventually(lambda: '"draining"' in ask(pod, "/readyz")[1])
            eventually(lambda: words(kubelet.service)["end-j3"])
            assert not deleted.done(), "it holds what Redis has not taken"
            own_redis.start()
            deletion = deleted.result()
        assert (deletion.hook_code, deletion.code) == (0, 0), deletion
        kubelet.start("next")
        eventually(lambda: all(state_of(broker, message) == "succeeded" for message in messages))
        assert set(words(kubelet.service).values()) == {1}
        assert attempts(broker, messages) == {"1"}


def test_a_drain_ends_in_time_where_redis_stays_away(kubelet: Kubelet, own_redis: RedisServer) -> None:
    kubelet.service.environment["REDIS_URL"] = own_redis.url
    pod = kubelet.start("idle", CALLBOARD_REDIS_TIMEOUT_SECONDS="1.5")
    own_redis.freeze()
    try:
        deletion = pod.delete(grace_seconds=10)
    finally:
        own_redis.thaw()
    assert (deletion.hook_code, deletion.code) == (0, 0), deletion
    assert deletion.hook_seconds < 3, "it holds nothing"


def test_drains_are_harmless_again_and_where_nobody_is(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("pod", *PLAIN)
    eventually(lambda: len(processes_of(pod)) == 2)
    for _ in range(2):
        drained = pod.exec("callboard", "drain")
        said, _ = drained.communicate(timeout=20)
        assert drained.returncode == 0
        assert "drained after" in said
        assert all(str(pid) in said for pid in processes_of(pod))
    message = send(broker, "fault.good", "later")
    assert pod.process.poll() is None, "it waits for SIGTERM"
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(20) == 0
    assert state_of(broker, message) == "pending"
    drained = pod.exec("callboard", "drain")
    said, _ = drained.communicate(timeout=20)
    assert drained.returncode == 0
    assert f"no worker runs in {pod.environment['CALLBOARD_RUN_DIR']}" in said
    del pod.environment["CALLBOARD_RUN_DIR"]
    drained = pod.exec("callboard", "drain")
    said, _ = drained.communicate(timeout=20)
    assert drained.returncode == os.EX_CONFIG
    assert "CALLBOARD_RUN_DIR is not set" in said


def test_a_drain_says_which_workers_have_ended_while_it_waited(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("pod")
    (worker,) = processes_of(pod)
    message = send(broker, "fault.good", "long", 2.5)
    eventually(lambda: len(words(kubelet.service)) == 1)
    drained = pod.exec("callboard", "drain")
    eventually(lambda: ask(pod, "/readyz")[0] == 503)
    os.kill(worker, signal.SIGKILL)
    said, _ = drained.communicate(timeout=20)
    assert drained.returncode == 0
    assert re.search(rf"ended within [0-9.]+ s: process {worker}\b", said), said
    assert state_of(broker, message) != "succeeded"


def test_a_frozen_process_holds_up_no_other(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("pod", *PLAIN)
    eventually(lambda: len(processes_of(pod)) == 2)
    frozen, other = processes_of(pod)
    os.kill(frozen, signal.SIGSTOP)
    try:
        drained = pod.exec("callboard", "drain", "--timeout", "4")
        eventually(lambda: any(worker.draining and worker.pid == other for worker in live_workers(broker)), 3)
        said, _ = drained.communicate(timeout=20)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert drained.returncode == 1
    assert f"process {frozen} does not answer" in said
    # It has been asked while it could not answer.
    eventually(lambda: len([worker for worker in live_workers(broker) if worker.draining]) == 2)


def test_only_who_can_read_the_folder_can_drain(kubelet: Kubelet) -> None:
    pod = kubelet.start("pod")
    (file,) = (pod.service.folder / pod.name / "run").glob("*.worker")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    url = f"http://127.0.0.1:{pod.service.ports[pod.name]}/drain"
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer \u00e9"}):
        request = urllib.request.Request(url, method="POST", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5)
        assert refused.value.code == 403
        refused.value.close()
    # What a killed process has left behind may name the port of a living one.
    file.with_name("1.worker").write_text(json.dumps({**json.loads(file.read_text()), "secret": "stale"}))
    file.unlink()
    drained = pod.exec("callboard", "drain")
    assert "no worker runs" in drained.communicate(timeout=20)[0]
    assert ask(pod, "/readyz")[0] == 200


def test_a_folder_that_may_not_be_read_is_not_one_without_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(0o700 if os.getuid() == 0 else 0)
    # Imported before: the user of root's choice may not be able to read this project.
    loaded = "import os, sys, service.settings, service.observe.run_dir; from service.cli import main; "
    as_another = "os.getuid() or os.setuid(65534); sys.exit(main(['drain']))"
    drained = subprocess.run(
        [sys.executable, "-c", loaded + as_another],
        env={**os.environ, "CALLBOARD_RUN_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    folder.chmod(0o700)
    assert drained.returncode == os.EX_CONFIG, drained
    assert "can't be read" in drained.stderr
    assert "drain as the user that they run as" in drained.stderr


def test_the_api_tells_of_a_drain_and_of_what_came_of_its_jobs(
    kubelet: Kubelet, broker: RedisBroker, whole_service: Service
) -> None:
    pod = kubelet.start("leaving", "callboard", "worker", "default", "--threads", "1")
    running, waiting = (send(broker, "fault.good", word, 3.0) for word in ("running", "waiting"))
    eventually(lambda: whole_service.job(running.message_id)["state"] == "running")
    with ThreadPoolExecutor() as pool:
        deleted = pool.submit(pod.delete, 12)
        eventually(lambda: [worker["draining"] for worker in whole_service.call("/workers")[1]["workers"]] == [True])
        assert whole_service.job(waiting.message_id)["state"] == "pending"
        assert deleted.result().code == 0
    job = whole_service.end_of(running.message_id)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)
    assert whole_service.call("/workers")[1]["workers"] == [], "it has said that it is gone"
    kubelet.start("next")
    job = whole_service.end_of(waiting.message_id)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)


def test_what_dies_while_its_pod_drains_is_not_replaced_and_others_run_its_job(
    kubelet: Kubelet, broker: RedisBroker
) -> None:
    options = {"CALLBOARD_GRACE_SECONDS": "12", "CALLBOARD_LEASE_SECONDS": "2"}
    command = ("callboard", "worker", "default", "--threads", "1", "--processes", "2")
    pod = kubelet.start("pod", *command, **options)
    eventually(lambda: len(processes_of(pod)) == 2)
    running = [send(broker, "fault.good", f"long{number}", 3.0) for number in range(2)]
    eventually(lambda: words(kubelet.service).total() == 2)
    waiting = [send(broker, "fault.good", f"later{number}", 3.0) for number in range(2)]
    with ThreadPoolExecutor() as pool:
        deletion = pool.submit(pod.delete, 12)
        eventually(lambda: ask(pod, "/readyz")[0] == 503)
        os.kill(processes_of(pod)[0], signal.SIGKILL)
        deletion.result()
    started = words(kubelet.service)
    assert (started["later0"], started["later1"]) == (0, 0), "started while the pod drained"
    assert attempts(broker, waiting) == {"0"}
    assert sorted(state_of(broker, message) for message in running) == ["running", "succeeded"], "until its lease ends"
