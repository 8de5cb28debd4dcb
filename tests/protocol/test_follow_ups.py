"""What a job sends goes out when it has succeeded, in the same step: all of it once, or nothing."""

import asyncio
import threading
import time
from typing import Any

import dramatiq
import pytest
import redis

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.outgoing import MOST
from service.errors import TooManyFollowUps
from service.job import Job, send_at_once
from service.middleware.context import current_job_or_none
from tests.protocol.test_worker import StartWorker, end_of, has_ended, states_of
from tests.servers import eventually


@pytest.fixture
def seen() -> list[int]:
    return []


@pytest.fixture
def follow(broker: RedisBroker, seen: list[int]) -> Any:
    @dramatiq.actor(broker=broker, actor_class=Job, queue_name="webhooks")
    def follow(*, n: int) -> None:
        seen.append(n)

    return follow


def declared(broker: RedisBroker, function: Any, **options: Any) -> Any:
    options = {"max_retries": 1, "min_backoff": 1, "max_backoff": 1, **options}
    return dramatiq.actor(function, broker=broker, actor_class=Job, **options)


def test_it_goes_out_after_the_success_in_the_order_of_the_sends(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    go, sent = threading.Event(), threading.Event()
    messages: list[Any] = []

    def lead() -> str:
        messages.extend(follow.send(n=n) for n in range(5))
        sent.set()
        go.wait(10)
        return "led"

    actor = declared(broker, lead)
    start_worker(threads=1)
    job = actor.send()
    assert sent.wait(10)
    time.sleep(0.1)
    assert [broker.find_record(message.message_id) for message in messages] == [None] * 5
    go.set()
    assert end_of(broker, job).result == "led"
    for message in messages:
        end_of(broker, message)
    assert seen == [0, 1, 2, 3, 4]


def test_a_failed_run_sends_nothing_and_the_one_that_succeeds_sends_once(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    def lead() -> None:
        context = current_job_or_none()
        assert context
        follow.send(n=context.attempt)
        if context.attempt == 1:
            raise ValueError("not yet")

    actor = declared(broker, lead)
    start_worker()
    assert end_of(broker, actor.send()).attempt == 2
    broker.join("default", timeout=10_000)
    broker.join("webhooks", timeout=10_000)
    assert seen == [2]


def test_a_job_that_dies_sends_nothing_but_what_it_sent_at_once(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    def lead() -> None:
        follow.send(n=1)
        with send_at_once():
            follow.send(n=2)
        broker.send_many([follow.message(n=3)])
        raise ValueError("no")

    actor = declared(broker, lead, max_retries=0)
    start_worker()
    end_of(broker, actor.send())
    broker.join("webhooks", timeout=10_000)
    assert sorted(seen) == [2, 3]


def test_a_coroutine_has_its_own_among_others(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    async def lead(*, n: int) -> None:
        await asyncio.sleep(0.01)
        follow.send(n=n)
        await asyncio.sleep(0.01 * (n % 3))
        if n % 2:
            raise ValueError("no")

    actor = declared(broker, lead, max_retries=0)
    start_worker(threads=8)
    for job in [actor.send(n=n) for n in range(16)]:
        end_of(broker, job)
    broker.join("default", timeout=10_000)
    broker.join("webhooks", timeout=10_000)
    assert sorted(seen) == list(range(0, 16, 2))


def test_a_delay_counts_from_the_success(broker: RedisBroker, start_worker: StartWorker, follow: Any) -> None:
    messages: list[Any] = []

    def lead() -> None:
        messages.append(follow.send_with_options(kwargs={"n": 1}, delay=300))
        time.sleep(0.4)

    actor = declared(broker, lead)
    start_worker()
    job = end_of(broker, actor.send())
    follower = end_of(broker, messages[0])
    assert states_of(broker, messages[0])[0] == "scheduled"
    assert follower.started_at is not None
    assert job.completed_at is not None
    assert (follower.started_at - job.completed_at).total_seconds() >= 0.3


def test_a_plain_actor_sends_at_once_as_in_dramatiq(
    broker: RedisBroker, start_worker: StartWorker, follow: Any
) -> None:
    done = threading.Event()

    @dramatiq.actor(broker=broker)
    def lead() -> None:
        message = follow.send(n=1)
        eventually(lambda: has_ended(broker, message))
        done.set()

    start_worker()
    lead.send()
    assert done.wait(10)


def test_too_many_are_refused_in_the_job(broker: RedisBroker, start_worker: StartWorker, follow: Any) -> None:
    refused: list[Exception] = []

    def lead() -> None:
        try:
            for n in range(MOST + 1):
                follow.send(n=n)
        except TooManyFollowUps as error:
            refused.append(error)
            raise

    actor = declared(broker, lead, max_retries=0)
    start_worker()
    end_of(broker, actor.send())
    assert "send_at_once" in str(refused[0])


def test_what_a_task_sends_that_outlives_its_job_is_not_lost(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    tasks: list[Any] = []

    async def lead() -> None:
        async def later() -> None:
            await asyncio.sleep(0.3)
            follow.send(n=2)

        tasks.append(asyncio.create_task(later()))
        follow.send(n=1)

    actor = declared(broker, lead)
    start_worker()
    end_of(broker, actor.send())
    eventually(lambda: seen == [1, 2])


def test_a_relay_that_is_cut_after_it_has_stored_a_message_stores_none_twice(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lead() -> None:
        for n in range(3):
            follow.send(n=n)

    actor = declared(broker, lead)
    removals: list[bytes] = []

    def remove(queue: str, element: bytes) -> None:
        removals.append(element)
        if len(removals) in (1, 3):
            raise redis.ConnectionError("cut")
        broker.wire.remove_outgoing(queue, element)

    monkeypatch.setattr(broker.relay, "_remove", remove)
    start_worker()
    actor.send()
    broker.join("default", timeout=10_000)
    broker.join("webhooks", timeout=10_000)
    assert len(removals) == 5
    assert seen == [0, 1, 2]


def test_another_worker_relays_what_a_dead_one_has_left(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    outgoing = Keys(broker.namespace, "default").outgoing
    row = broker.row(follow.message(n=1), None)
    broker.client.rpush(outgoing, b"not ours", b"a:1:0 webhooks\n" + row.packed())
    dramatiq.actor(lambda: None, broker=broker, actor_name="of.default")
    start_worker()
    eventually(lambda: seen == [1])
    eventually(lambda: not broker.client.exists(outgoing))


def test_one_relay_at_a_time_works_on_a_queue_and_the_next_one_does_not_wait_for_the_dead(
    broker: RedisBroker, start_worker: StartWorker, follow: Any, seen: list[int]
) -> None:
    def lead() -> None:
        follow.send(n=1)

    actor = declared(broker, lead)
    keys = Keys(broker.namespace, "default")
    assert broker.wire.take_turn("default", 1.0), "of a process that dies now"
    assert not broker.wire.take_turn("default", 1.0)
    start_worker()
    end_of(broker, actor.send())
    assert broker.client.llen(keys.outgoing) == 1
    assert seen == []
    eventually(lambda: seen == [1], 3)
    eventually(lambda: not broker.client.exists(keys.relaying, keys.outgoing))
