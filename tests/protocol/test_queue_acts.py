"""Pause, resume, counts and purge of a queue, with real workers beside them."""

import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.keys import Keys
from service.broker.outcome import Reason
from service.broker.queue_acts import QueueActs
from service.state.states import State
from tests.commands import client_commands
from tests.protocol.test_worker import end_of, find
from tests.servers import RedisServer, eventually

StartWorker = Callable[..., Worker]


def a_message(**fields: Any) -> Message[Any]:
    return Message(
        **{"queue_name": "default", "actor_name": "t.act", "args": (), "kwargs": {}, "options": {}, **fields}
    )


def wait_for(gate: threading.Event) -> None:
    while not gate.is_set():
        time.sleep(0.005)


def test_a_paused_queue_starts_nothing_and_a_resumed_one_at_once(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """Also not what comes due, or back from a failure; what runs goes on."""
    runs: list[str] = []
    gate = threading.Event()

    @dramatiq.actor(broker=broker, min_backoff=1, max_backoff=1, max_retries=1)
    def act(word: str) -> None:
        runs.append(word)
        if word == "runs":
            wait_for(gate)
        if word == "fails" and runs.count("fails") == 1:
            wait_for(gate)
            raise ConnectionError("once")

    start_worker()
    first, fails = act.send("runs"), act.send("fails")
    eventually(lambda: sorted(runs) == ["fails", "runs"])
    acts = QueueActs(broker)
    assert acts.pause("default", by="ada", why="a move")
    assert not acts.pause("default", by="eve")
    now, later = act.send("now"), act.send_with_options(args=("later",), delay=50)
    gate.set()
    assert end_of(broker, first).state is State.SUCCEEDED
    keys = Keys(broker.namespace, "default")
    eventually(lambda: broker.client.zcard(keys.ready) == 3)
    counts = acts.counts_of("default")
    assert (counts.paused, counts.pending, counts.retrying, counts.purgeable) == (3, 0, 0, 3)
    assert counts.pause
    assert (counts.pause.by, counts.pause.why) == ("ada", "a move")
    time.sleep(0.3)
    assert sorted(runs) == ["fails", "runs"]

    eventually(lambda: broker.client.zcard(keys.waiters) == 1)  # it sleeps
    since = time.monotonic()
    assert acts.resume("default", by="ada")
    assert not acts.resume("default", by="ada")
    for message in (now, later, fails):
        assert end_of(broker, message).state is State.SUCCEEDED
    assert time.monotonic() - since < 2


def test_a_pause_of_a_full_queue_costs_its_workers_no_calls(
    broker: RedisBroker, start_worker: StartWorker, redis_server: RedisServer
) -> None:
    @dramatiq.actor(broker=broker, actor_name="t.act")
    def act() -> None: ...

    acts = QueueActs(broker)
    acts.pause("default", by="ada")
    broker.send_many([a_message() for _ in range(500)])
    start_worker()
    keys = Keys(broker.namespace, "default")
    eventually(lambda: broker.client.zcard(keys.waiters) == 1)
    time.sleep(0.5)  # it has asked again after it had subscribed
    with client_commands(redis_server) as commands:
        time.sleep(3)
    assert commands["EVALSHA"] <= 1
    acts.resume("default", by="ada")
    eventually(lambda: broker.wire.backlog("default") == 0)


def test_jobs_are_counted_by_state(broker: RedisBroker, start_worker: StartWorker) -> None:
    gate = threading.Event()

    @dramatiq.actor(broker=broker, min_backoff=600_000, max_backoff=600_000, max_retries=1)
    def act(word: str) -> None:
        if word == "retries":
            raise ConnectionError("no")
        wait_for(gate)

    @dramatiq.actor(broker=broker, max_retries=0)
    def dies() -> None:
        raise ValueError("no")

    start_worker(threads=1)
    retries = [act.send("retries") for _ in range(3)]
    dead = dies.send()
    eventually(lambda: all(find(broker, each).state is State.RETRYING for each in retries))
    eventually(lambda: find(broker, dead).state is State.DEAD)
    running = act.message_with_options(args=("runs",), idempotency_key="k")
    broker.enqueue(running)
    eventually(lambda: find(broker, running).state is State.RUNNING)
    time.sleep(0.1)  # until it runs for longer than what a worker fetches ahead of
    act.send_with_options(args=("later",), delay=600_000)
    acts = QueueActs(broker)
    for _ in range(2):
        act.send("next")
    waits = act.message_with_options(args=("waits",), idempotency_key="k", priority=0)
    broker.enqueue(waits)
    broker.wire.fetch("default", 1, lease_ms=30_000, wakeable_ms=0)  # another worker meets the key
    counts = acts.counts_of("default")
    found = (counts.pending, counts.scheduled, counts.waiting, counts.running, counts.retrying, counts.dead)
    assert found == (2, 1, 1, 1, 3, 1)
    assert counts.is_exact
    assert counts.paused == 0
    gate.set()


def test_of_many_failures_the_retries_are_estimated(broker: RedisBroker) -> None:
    keys = Keys(broker.namespace, "default")
    broker.send_many([a_message() for _ in range(4000)], delay_ms=600_000)
    entries = broker.client.hkeys(keys.messages)[:2000]
    line = '{"attempt":1,"started_at":1,"ended_at":2,"worker":"w","error":{"type": "ValueError", "message": "no"}}'
    broker.client.hset(keys.attempts, mapping=dict.fromkeys(entries, line))
    counts = QueueActs(broker).counts_of("default")
    assert (counts.retrying, counts.scheduled) == (2000, 2000)
    assert not counts.is_exact


def test_the_oldest_of_all_priorities_is_told(broker: RedisBroker) -> None:
    acts = QueueActs(broker)
    assert acts.counts_of("default").oldest_seconds is None

    @dramatiq.actor(broker=broker)
    def act() -> None: ...

    act.send_with_options(priority=9)
    act.send_with_options(delay=600_000)
    time.sleep(0.5)
    act.send_with_options(priority=0)
    oldest = acts.counts_of("default").oldest_seconds
    assert oldest is not None
    assert 0.5 <= oldest < 10
    broker.fetch("default", 2)
    assert acts.counts_of("default").oldest_seconds is None, "what waits for its time is none"


@pytest.mark.parametrize("keep", [False, True], ids=["cancelled", "kept"])
def test_a_purge_takes_out_all_that_waits_and_nothing_else(
    broker: RedisBroker, start_worker: StartWorker, keep: bool
) -> None:
    runs: list[int] = []
    gate = threading.Event()

    @dramatiq.actor(broker=broker)
    def act(number: int) -> None:
        runs.append(number)
        if number < 0:
            wait_for(gate)

    start_worker(threads=1)
    running = act.send(-1)
    eventually(lambda: runs == [-1])
    ready = [act.message_with_options(args=(number,), idempotency_key=f"k{number % 3}") for number in range(400)]
    delayed = [act.message(number) for number in range(400)]
    broker.send_many(ready)
    broker.send_many(delayed, delay_ms=600_000)
    purged = QueueActs(broker).purge("default", by="ada", why="a flood", keep=keep)
    assert purged == 800
    later = act.send(1000)
    gate.set()
    assert end_of(broker, running).state is State.SUCCEEDED
    assert end_of(broker, later).state is State.SUCCEEDED
    assert runs == [-1, 1000]
    keys = Keys(broker.namespace, "default")
    for key in (keys.ready, keys.delayed, keys.messages, keys.once_waiting, keys.leases, keys.attempts, keys.lapses):
        assert not broker.client.exists(key)
    ended = [find(broker, message) for message in (*ready, *delayed)]
    assert {each.state for each in ended} == {State.DEAD if keep else State.CANCELLED}
    assert {each.error and each.error["message"] for each in ended} == {"Cancelled by ada: a flood"}
    letters = DeadLetters(broker)
    assert broker.client.zcard(keys.dead) == (800 if keep else 0)
    if keep:
        letter = letters.get(ready[7].message_id)
        assert letter
        assert letter.reason is Reason.CANCELLED
        assert letters.replay_many(by="ada", limit=3).replayed == 3
        # Two of them may have one key: then one is skipped.
        everything = [*ready, *delayed]
        eventually(lambda: sum(find(broker, each).state is State.SUCCEEDED for each in everything) == 3)
        assert 3 <= len(runs) <= 5


def test_what_is_sent_during_a_purge_stays(broker: RedisBroker) -> None:
    before = [a_message() for _ in range(1000)]
    broker.send_many(before)
    sent: list[Message[Any]] = []
    run, steps = broker.wire.run, 0

    def run_and_send(script: str, *rest: Any) -> Any:
        nonlocal steps
        steps += script == "purge"
        if script == "purge":
            sent.append(a_message())
            broker.send(sent[-1])
        return run(script, *rest)

    broker.wire.run = run_and_send  # type: ignore[method-assign]
    assert QueueActs(broker).purge("default", by="ada") == 1000
    assert steps >= 5, "in steps"
    there = broker.client.hkeys(Keys(broker.namespace, "default").messages)
    assert {entry.decode() for entry in there} == {message.message_id for message in sent}
