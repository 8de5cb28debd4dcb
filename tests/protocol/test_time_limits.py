"""Soft and hard time limits of jobs in threads, and how long a job may wait."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.request import urlopen

import dramatiq
import pytest
from dramatiq.middleware.time_limit import TimeLimitExceeded
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.errors import DeclarationError, SoftTimeLimit
from service.middleware import time_limit
from service.observe.overdue import overdue_jobs
from service.observe.probe import Answers, Probe
from service.state.states import State
from tests.protocol.test_worker import Gauge, end_of, find, has_ended
from tests.servers import eventually, free_port

StartWorker = Callable[..., Worker]


@pytest.fixture
def livez() -> Iterator[Callable[[], dict[str, Any]]]:
    """What a probe of this process answers."""
    probe = Probe("127.0.0.1", free_port(), Answers(lambda: True))
    probe.start()

    def ask() -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{probe.port}/livez", timeout=5) as reply:
            return json.load(reply)

    yield ask
    probe.stop()


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice a limit within milliseconds, so that many interruptions meet the end of their job."""
    monkeypatch.setattr(time_limit, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(time_limit, "GRACE_SECONDS", 0.3)


def test_a_soft_limit_is_raised_once_and_leaves_time_for_an_end(broker: RedisBroker, start_worker: StartWorker) -> None:
    told: list[float] = []

    @dramatiq.actor(broker=broker, max_retries=0, soft_time_limit=200, time_limit=10_000)
    def work() -> str:
        started = time.monotonic()
        for _ in range(2):
            try:
                while time.monotonic() < started + 1:
                    time.sleep(0.01)
            except SoftTimeLimit:
                told.append(time.monotonic() - started)
        return "cleaned up"

    start_worker()
    assert end_of(broker, work.send()).result == "cleaned up"
    assert len(told) == 1
    assert 0.2 <= told[0] < 0.9


def test_the_hard_limit_ends_what_goes_on_after_the_soft_one(broker: RedisBroker, start_worker: StartWorker) -> None:
    told: list[type[BaseException]] = []

    @dramatiq.actor(broker=broker, max_retries=0, soft_time_limit=200, time_limit=700)
    def stubborn() -> None:
        while True:
            try:
                time.sleep(0.01)
            except BaseException as error:
                told.append(type(error))
                if isinstance(error, TimeLimitExceeded):
                    raise

    start_worker()
    job = end_of(broker, stubborn.send())
    assert told == [SoftTimeLimit, TimeLimitExceeded]
    assert job.error is not None
    assert "TimeLimitExceeded" in job.error["type"]
    assert "longer than its timeout" in job.error["message"]


def test_a_job_that_does_not_catch_its_soft_limit_fails_and_may_be_tried_again(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=1, soft_time_limit=100)
    def slow() -> None:
        while True:
            time.sleep(0.01)

    start_worker()
    job = end_of(broker, slow.send())
    assert job.error is not None
    assert (job.attempt, "SoftTimeLimit" in job.error["type"]) == (2, True)


@pytest.mark.timeout(120)
def test_limits_that_fire_as_jobs_end_cost_no_thread_and_no_job(
    broker: RedisBroker, start_worker: StartWorker, quick_looks: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 03-D17, five times as fast."""
    strays: list[BaseException] = []

    class SlowAfter(dramatiq.Middleware):
        def after_process_message(self, *_: Any, **__: Any) -> None:
            try:
                deadline = time.monotonic() + 0.01
                while time.monotonic() < deadline:
                    time.sleep(0.001)
            except BaseException as error:
                strays.append(error)
                raise

    @dramatiq.actor(broker=broker, max_retries=0, time_limit=200)
    def fails_at_the_limit(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.0005)
        raise ValueError("no luck")

    @dramatiq.actor(broker=broker, max_retries=0, time_limit=200)
    def blocks() -> None:
        time.sleep(1)

    gauge = Gauge()

    @dramatiq.actor(broker=broker, max_retries=0)
    def quick() -> None:
        gauge.work(0.1)

    broker.add_middleware(SlowAfter())
    died: list[Any] = []
    old_hook, threading.excepthook = threading.excepthook, died.append
    overdue_before = overdue_jobs.total
    try:
        worker = start_worker(threads=8)
        random_source = random.Random(17)
        at_the_limit = [fails_at_the_limit.send(random_source.uniform(0.19, 0.21)) for _ in range(500)]
        blocked = [blocks.send() for _ in range(20)]
        last = [quick.send() for _ in range(160)]  # for longer than one blocks
        eventually(lambda: all(has_ended(broker, message) for message in [*at_the_limit, *blocked, *last]), 90)
    finally:
        threading.excepthook = old_hook
    assert died == []
    assert strays == []
    assert all(thread.is_alive() for thread in worker.workers)
    assert gauge.peak == 8
    errors = Counter((find(broker, message).error or {})["type"].rpartition(".")[2] for message in at_the_limit)
    assert errors.keys() == {"TimeLimitExceeded", "ValueError"}, "both ways, or the test has not met the edge"
    assert all("TimeLimitExceeded" in (find(broker, message).error or {})["type"] for message in blocked)
    assert all(find(broker, message).state is State.SUCCEEDED for message in last)
    assert overdue_jobs.total - overdue_before == 20
    assert sum("can't be interrupted" in record.message for record in caplog.records) == 20
    eventually(lambda: overdue_jobs.now == 0)
    assert "Unexpected failure" not in caplog.text


def test_a_job_that_can_not_be_interrupted_is_told_of_while_it_runs(
    broker: RedisBroker, start_worker: StartWorker, quick_looks: None, livez: Callable[[], dict[str, Any]]
) -> None:
    release = threading.Event()

    @dramatiq.actor(broker=broker, max_retries=0, time_limit=100)
    def blocks() -> None:
        release.wait(20)

    start_worker()
    message = blocks.send()
    try:
        eventually(lambda: overdue_jobs.now == 1)
        assert livez() == {"status": "alive", "overdue_jobs": 1}
    finally:
        release.set()
    end_of(broker, message)
    eventually(lambda: overdue_jobs.now == 0)


def test_a_job_that_has_waited_too_long_fails_as_expired_by_redis_own_clock(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker, expires_ms=300)
    def work(number: int) -> None:
        runs.append(number)

    late = work.send(1)
    time.sleep(0.35)
    # From a sender whose clock is an hour behind: it counts for nothing.
    fresh = broker.enqueue(cast("Any", work.message(2)).copy(message_timestamp=int(time.time() * 1000) - 3_600_000))
    start_worker()
    job = end_of(broker, late)
    assert job.error is not None
    assert (job.state, job.error["type"]) == (State.DEAD, "service.errors.Expired")
    assert "and may for 0.3 s" in job.error["message"]
    assert end_of(broker, fresh).state is State.SUCCEEDED
    assert runs == [2]


def test_a_delay_that_is_longer_than_a_job_may_wait_is_refused(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, expires_ms=1000)
    def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"delay=1000 ms is not less than expires=1 s"):
        cast("Any", work).send_with_options(delay=1000)
    cast("Any", work).send_with_options(delay=999)
