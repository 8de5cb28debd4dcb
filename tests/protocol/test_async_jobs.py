"""`async def` jobs hold no thread while they wait, and are jobs like any other for all that."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Shutdown
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.errors import SoftTimeLimit
from service.job import Job
from service.middleware.context import current_job_or_none
from service.queues import QUEUES
from service.state.states import State
from tests.protocol.test_worker import end_of, find, has_ended, states_of
from tests.servers import eventually

StartWorker = Callable[..., Worker]


@pytest.fixture
def wide_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker run 1,100 jobs of the queue `default` at a time."""
    wide = MappingProxyType({**QUEUES, "default": replace(QUEUES["default"], concurrency=1100)})
    monkeypatch.setattr("service.queues.QUEUES", wide)


@pytest.mark.timeout(120)
def test_a_thousand_sleeping_jobs_need_no_thread_each(
    broker: RedisBroker, start_worker: StartWorker, wide_queue: None
) -> None:
    running = peak = 0

    @dramatiq.actor(broker=broker, actor_class=Job, max_retries=0)
    async def sleep(*, number: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        while peak < 1000:
            await asyncio.sleep(0.1)
        running -= 1
        return number

    messages = [sleep.message(number=number) for number in range(1050)]
    assert broker.send_many(messages).stored
    threads_before = threading.active_count()
    start_worker(threads=8)
    eventually(lambda: peak >= 1000, 60)
    assert threading.active_count() - threads_before < 8 + 20
    eventually(lambda: all(has_ended(broker, message) for message in messages), 60)
    assert [find(broker, message).result for message in messages] == list(range(1050))


def test_a_queue_keeps_its_concurrency_for_jobs_without_threads(broker: RedisBroker, start_worker: StartWorker) -> None:
    running = peak = ended = 0

    @dramatiq.actor(broker=broker, max_retries=0)
    async def work() -> None:
        nonlocal running, peak, ended
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05)
        running -= 1
        ended += 1

    for _ in range(60):
        work.send()
    start_worker(threads=3)
    eventually(lambda: ended == 60)
    assert peak == QUEUES["default"].concurrency


def test_a_thread_is_free_for_others_while_a_coroutine_waits(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    async def wait() -> str:
        while "over" not in done:
            await asyncio.sleep(0.01)
        return "waited"

    @dramatiq.actor(broker=broker)
    def say() -> None:
        done.append("over")

    done: list[str] = []
    start_worker(threads=1)
    first = wait.send()
    eventually(lambda: find(broker, first).state is State.RUNNING)
    say.send()
    assert end_of(broker, first).result == "waited"
    assert states_of(broker, first) == ["pending", "running", "succeeded"]


def test_the_hooks_of_a_job_share_one_context_and_its_neighbours_do_not(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    variable: ContextVar[str | None] = ContextVar("variable", default=None)
    seen: list[tuple[str | None, str]] = []

    class Sets(dramatiq.Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            assert variable.get() is None
            variable.set(message.message_id)

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            seen.append((variable.get(), message.message_id))
            assert result == (message.message_id, message.message_id)

    @dramatiq.actor(broker=broker, max_retries=0)
    async def work(seconds: float) -> tuple[str | None, str]:
        await asyncio.sleep(seconds)
        context = current_job_or_none()
        assert context is not None
        return variable.get(), context.job_id

    broker.add_middleware(Sets())
    messages = [work.send(0.0 if number % 2 else 0.05) for number in range(40)]
    start_worker(threads=2)
    for message in messages:
        assert end_of(broker, message).state is State.SUCCEEDED
    eventually(lambda: len(seen) == 40)
    assert all(in_hook == message_id for in_hook, message_id in seen)


def test_a_coroutine_is_told_of_its_soft_limit_and_goes_on(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, max_retries=0, soft_time_limit=200, time_limit=10_000)
    async def work() -> str:
        try:
            await asyncio.sleep(30)
        except SoftTimeLimit:
            async with asyncio.timeout(5):
                await asyncio.sleep(0.05)
            return "cleaned up"
        return "never told"

    start_worker()
    assert end_of(broker, work.send()).result == "cleaned up"


def test_a_coroutine_that_fails_is_tried_again(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=1)
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("not now")

    start_worker()
    message = fail.send()
    job = end_of(broker, message)
    assert job.error is not None
    assert (job.attempt, job.error["type"], job.error["message"]) == (2, "ValueError", "not now")
    assert "test_async_jobs.py" in job.error["traceback"]
    assert states_of(broker, message) == ["pending", "running", "retrying", "running", "dead"]


def test_a_draining_worker_lets_its_coroutines_end(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    async def work() -> str:
        await asyncio.sleep(1)
        return "ended"

    message = work.send()
    worker = Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    eventually(lambda: find(broker, message).state is State.RUNNING)
    worker.stop(timeout=10_000)
    assert find(broker, message).result == "ended"


def test_a_coroutine_that_outlives_the_grace_period_is_interrupted_and_given_back(broker: RedisBroker) -> None:
    began, told = threading.Event(), list[bool]()

    @dramatiq.actor(broker=broker, max_retries=0)
    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(30)
        finally:
            told.append(True)

    message = work.send()
    worker = Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    assert began.wait(10)  # held alone, it would be given back without having been interrupted
    started = time.monotonic()
    worker.stop(timeout=500)
    assert time.monotonic() - started < 5
    assert told == [True]
    assert states_of(broker, message) == ["pending", "running", "pending"]
    assert Shutdown.__name__ not in str(find(broker, message).error)
