"""A job is cancelled: where it waits at once, where it runs by interruption, and it never starts again."""

import asyncio
import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.composition import group, pipeline
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.job_acts import Act, JobActs
from service.broker.keys import Keys
from service.broker.outgoing import FollowUp
from service.broker.settlement import released
from service.job import Cancelled, Job, Snooze, current_job
from service.state.states import State
from tests.protocol.test_worker import end_of, find, has_ended, states_of, states_of_all
from tests.servers import eventually

StartWorker = Callable[..., Worker]
KEPT = ("events", "finals", "counter", "waiters", "once", "once-until")


def cancel(broker: RedisBroker, message: Message[Any], why: str = "sent by mistake") -> Act:
    act = JobActs(broker).cancel(message.message_id, by="ada", why=why)
    assert act
    return act


def traces(broker: RedisBroker, message: Message[Any]) -> list[str]:
    """The keys of the message's queue that name it, besides its history."""
    client, found = broker.client, []
    prefix = f"{{{broker.namespace}:{message.queue_name}}}:"
    for key in client.scan_iter(f"{prefix}*"):
        name = key.decode().removeprefix(prefix)
        kind = client.type(key)
        content = client.hgetall(key) if kind == b"hash" else client.zrange(key, 0, -1) if kind == b"zset" else []
        if name not in KEPT and message.message_id in repr(content):
            found.append(name)
    return found


@pytest.fixture
def gate() -> threading.Event:
    """What jobs of a test wait for, returning to Python often."""
    return threading.Event()


def wait_for(gate: threading.Event) -> None:
    while not gate.is_set():
        time.sleep(0.005)


@pytest.mark.parametrize("place", ["ready", "delayed", "retrying", "waiting", "unique"])
def test_a_job_that_waits_leaves_its_queue_at_once_with_every_trace(
    broker: RedisBroker, start_worker: StartWorker, place: str
) -> None:
    """Case 04-D44: with no worker up, in the wait for a retry, and before its time."""
    gate = threading.Event()
    starts: list[str] = []

    @dramatiq.actor(broker=broker, actor_class=Job, min_backoff=60_000, max_backoff=60_000, max_retries=3)
    def act(*, word: str) -> None:
        starts.append(word)
        if word == "fails":
            current_job().checkpoint([1])
            raise ConnectionError("not now")
        wait_for(gate)

    message = act.message_with_options(
        kwargs={"word": "fails" if place == "retrying" else "waits"},
        **({"idempotency_key": "k"} if place == "waiting" else {}),
        **({"unique_key": 'u "quoted"'} if place == "unique" else {}),
    )
    if place == "waiting":
        broker.enqueue(act.message_with_options(kwargs={"word": "holds"}, idempotency_key="k"))
        start_worker()
        eventually(lambda: starts == ["holds"])
    broker.enqueue(message, delay=3_600_000 if place == "delayed" else None)
    if place == "retrying":
        start_worker()
    states = {"delayed": State.SCHEDULED, "retrying": State.RETRYING, "waiting": State.WAITING}
    eventually(lambda: find(broker, message).state is states.get(place, State.PENDING))
    assert traces(broker, message)

    assert cancel(broker, message) == Act("cancelled", done=True)
    assert traces(broker, message) == []
    found = find(broker, message)
    assert found.state is State.CANCELLED
    assert found.error == {"type": "Cancelled", "message": "Cancelled by ada: sent by mistake", "traceback": ""}
    assert (found.attempt, found.completed_at is None) == (1 if place == "retrying" else 0, False)
    assert cancel(broker, message) == Act("cancelled", done=True), "it can be repeated"
    if place == "unique":
        broker.enqueue(act.message_with_options(kwargs={"word": "next"}, unique_key='u "quoted"'))
    gate.set()
    if place != "retrying" and place != "waiting":
        start_worker()
    eventually(lambda: broker.wire.backlog("default") == 0)
    assert starts == {"retrying": ["fails"], "waiting": ["holds"], "unique": ["next"]}.get(place, [])
    assert states_of(broker, message)[-1] == "cancelled"


def test_a_job_whose_key_was_to_come_next_lets_those_behind_it_pass(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    starts: list[str] = []

    @dramatiq.actor(broker=broker, actor_class=Job, max_retries=3, min_backoff=600_000, max_backoff=600_000)
    def act(*, word: str) -> None:
        starts.append(word)
        if word == "fails":
            raise ConnectionError("not now")

    first, second = (act.message_with_options(kwargs={"word": word}, idempotency_key="k") for word in ("fails", "next"))
    broker.enqueue(first)
    start_worker()
    eventually(lambda: find(broker, first).state is State.RETRYING)
    cancel(broker, first)
    broker.enqueue(second)
    assert end_of(broker, second).state is State.SUCCEEDED
    assert starts == ["fails", "next"]


def test_a_running_job_is_interrupted_and_may_clean_up(broker: RedisBroker, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    @dramatiq.actor(broker=broker, max_retries=5)
    def act() -> None:
        seen.append("start")
        try:
            wait_for(threading.Event())
        except Cancelled:
            seen.append(current_job().cancelled)
            raise

    start_worker()
    message = act.send()
    eventually(lambda: seen == ["start"])
    since = time.monotonic()
    assert cancel(broker, message) == Act("running", done=True)
    assert cancel(broker, message) == Act("running", done=True) or has_ended(broker, message)
    found = end_of(broker, message)
    assert time.monotonic() - since < 1
    assert (found.state, found.error and found.error["message"]) == (
        State.CANCELLED,
        "Cancelled by ada: sent by mistake",
    )
    assert seen == ["start", True]
    assert states_of(broker, message) == ["pending", "running", "cancelled"]
    eventually(lambda: traces(broker, message) == [])
    assert not broker.client.exists(Keys(broker.namespace, "default").cancels)
    assert cancel(broker, message) == Act("cancelled", done=True)


@pytest.mark.parametrize("ending", ["returns", "fails", "is too slow", "snoozes"])
def test_a_job_that_does_not_let_itself_be_stopped_ends_as_cancelled_all_the_same(
    broker: RedisBroker, start_worker: StartWorker, ending: str
) -> None:
    """And what it has sent does not go out, and nobody is told of a failure."""
    runs: list[str] = []

    @dramatiq.actor(broker=broker, actor_class=Job)
    def follow() -> None:
        runs.append("follow")

    @dramatiq.actor(broker=broker)
    def told(*_: Any) -> None:
        runs.append("told")

    @dramatiq.actor(broker=broker, actor_class=Job, max_retries=2, min_backoff=1, max_backoff=2, time_limit=1000)
    def act() -> None:
        runs.append("act")
        follow.send()
        with contextlib.suppress(Cancelled):
            wait_for(threading.Event())
        if ending == "fails":
            raise ConnectionError("as usual")
        if ending == "snoozes":
            raise Snooze(0.01)
        if ending == "is too slow":
            wait_for(threading.Event())

    start_worker()
    message = act.message_with_options(on_failure="told", on_success="told", on_retry_exhausted="told")
    broker.enqueue(message)
    eventually(lambda: runs == ["act"])
    cancel(broker, message)
    assert end_of(broker, message).state is State.CANCELLED
    later = follow.send()
    end_of(broker, later)
    assert runs == ["act", "follow"]
    assert not broker.client.exists(Keys(broker.namespace, "default").dead)


@pytest.mark.parametrize("how", ["raises", "swallows", "waits for others", "has a time-out"])
def test_a_coroutine_meets_the_cancellation(broker: RedisBroker, start_worker: StartWorker, how: str) -> None:
    seen: list[Any] = []

    @dramatiq.actor(broker=broker, max_retries=3)
    async def act() -> None:
        seen.append("start")
        try:
            if how == "waits for others":
                async with asyncio.TaskGroup() as others:
                    others.create_task(asyncio.sleep(60))
            elif how == "has a time-out":
                async with asyncio.timeout(60):
                    await asyncio.sleep(60)
            else:
                await asyncio.sleep(60)
        except BaseException as error:
            seen.append((isinstance(error, Cancelled) or how == "waits for others", current_job().cancelled))
            if how != "swallows":
                raise

    start_worker()
    message = act.send()
    eventually(lambda: seen == ["start"])
    since = time.monotonic()
    assert cancel(broker, message).state == "running"
    assert end_of(broker, message).state is State.CANCELLED
    assert time.monotonic() - since < 1
    assert seen == ["start", (True, True)]


def test_what_a_worker_has_and_has_not_started_never_starts(
    broker: RedisBroker, start_worker: StartWorker, gate: threading.Event
) -> None:
    """Case 04-D44: they were handed to the worker, and wait for its thread."""
    starts: list[int] = []

    @dramatiq.actor(broker=broker)
    def act(number: int) -> None:
        starts.append(number)
        if number == 1000:
            wait_for(gate)

    messages = [act.message(number) for number in range(2000)]
    broker.send_many(messages)
    start_worker(threads=1)
    leases = Keys(broker.namespace, "default").leases
    eventually(lambda: starts[-1:] == [1000])
    held = [each for each in messages[1001:] if broker.client.hexists(leases, each.message_id)]
    assert held, "it holds some ahead"
    assert {cancel(broker, message).state for message in held} == {"running"}
    eventually(lambda: all(find(broker, message).state is State.CANCELLED for message in held), 2)
    assert not gate.is_set()
    assert starts[-1] == 1000, "its one thread was busy all the time"
    gate.set()
    eventually(lambda: broker.wire.backlog("default") == 0)
    never = {message.args[0] for message in held}
    assert not never & set(starts)
    assert len(starts) == 2000 - len(held), "all others have run: no slot is lost"


def test_a_lost_call_is_made_good_within_two_seconds(
    broker: RedisBroker, start_worker: StartWorker, gate: threading.Event
) -> None:
    """As of a worker that drains, and is not called any more. It asks only while it holds something."""
    started = threading.Event()

    @dramatiq.actor(broker=broker)
    def act() -> None:
        started.set()
        wait_for(gate)

    start_worker()
    message = act.send()
    assert started.wait(10)
    broker.wakeups.stop()
    eventually(lambda: not broker.client.pubsub_channels(f"{broker.namespace}:wake:*"))
    since = time.monotonic()
    cancel(broker, message)
    assert end_of(broker, message).state is State.CANCELLED
    assert time.monotonic() - since < 2


def test_in_a_race_with_the_end_the_answer_and_the_final_state_agree(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """Case 04-D44: 500 times, within 10 ms of the end."""
    ran: set[int] = set()

    @dramatiq.actor(broker=broker, actor_class=Job)
    def act(*, number: int) -> int:
        time.sleep(0.005)
        ran.add(number)
        return number

    start_worker(threads=2)
    chance = random.Random(44)
    answers: list[tuple[Message[Any], Act]] = []
    for number in range(500):
        message = act.message(number=number)
        broker.enqueue(message)
        time.sleep(chance.uniform(0.0, 0.015))
        answers.append((message, cancel(broker, message)))
    eventually(lambda: broker.wire.backlog("default") == 0)
    states = states_of_all(broker, "default")
    for message, answer in answers:
        final = find(broker, message).state
        assert answer.done == (final is State.CANCELLED)
        assert answer.state in ("cancelled", "running", "succeeded")
        assert (answer.state == "succeeded") == (final is State.SUCCEEDED)
        assert states[message.message_id].count("cancelled") == (final is State.CANCELLED)
    assert {answer.state for _, answer in answers} >= {"running", "succeeded"}, "it has met all of them"


@pytest.mark.parametrize("swallows", [True, False], ids=["has taken effect", "was interrupted"])
def test_the_key_of_what_has_taken_effect_stays_taken(
    broker: RedisBroker, start_worker: StartWorker, swallows: bool
) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=broker, actor_class=Job, idempotency_key=None)
    def act(*, word: str) -> str:
        runs.append(word)
        if word == "first":
            try:
                wait_for(threading.Event())
            except Cancelled:
                if not swallows:
                    raise
        return word

    start_worker()
    first, second = (act.message_with_options(kwargs={"word": w}, idempotency_key="k") for w in ("first", "second"))
    broker.enqueue(first)
    eventually(lambda: runs == ["first"])
    broker.enqueue(second)
    eventually(lambda: find(broker, second).state is State.WAITING)
    cancel(broker, first)
    assert end_of(broker, first).state is State.CANCELLED
    found = end_of(broker, second)
    assert (found.state, found.skipped, found.result) == (
        State.SUCCEEDED,
        swallows,
        "first" if swallows else "second",
    )
    assert runs == (["first"] if swallows else ["first", "second"])


def test_no_step_after_a_cancelled_one_runs_and_a_groups_other_members_do(
    broker: RedisBroker, start_worker: StartWorker, gate: threading.Event
) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=broker)
    def step(word: str, before: str = "") -> str:
        runs.append(word)
        if word in ("a", "g1"):
            with contextlib.suppress(Cancelled):
                wait_for(gate)
        return word

    start_worker()
    steps = pipeline([step.message("a"), step.message("b")], broker=broker)
    members = group([step.message("g1"), step.message("g2")], broker=broker)
    steps.run()
    members.run()
    eventually(lambda: sorted(runs) == ["a", "g1", "g2"])
    cancel(broker, steps.messages[0])
    cancel(broker, members.children[0])
    assert end_of(broker, steps.messages[0]).state is State.CANCELLED
    assert end_of(broker, members.children[0]).state is State.CANCELLED
    assert end_of(broker, members.children[1]).state is State.SUCCEEDED
    eventually(lambda: broker.wire.backlog("default") == 0)
    assert sorted(runs) == ["a", "g1", "g2"]


def test_what_a_worker_gives_back_at_its_stop_ends_as_cancelled(broker: RedisBroker, start_worker: StartWorker) -> None:
    started = threading.Event()

    @dramatiq.actor(broker=broker)
    def act() -> None:
        started.set()
        while True:
            with contextlib.suppress(Cancelled):
                wait_for(threading.Event())

    worker = start_worker()
    message = act.send()
    assert started.wait(10)
    cancel(broker, message)
    time.sleep(0.1)  # swallowed; now its worker stops
    worker.stop(timeout=200)
    assert end_of(broker, message).state is State.CANCELLED
    assert states_of(broker, message) == ["pending", "running", "cancelled"]


def test_a_job_may_end_itself_as_cancelled(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def act() -> None:
        raise Cancelled

    start_worker()
    found = end_of(broker, act.send())
    assert (found.state, found.error and found.error["type"]) == (State.CANCELLED, "Cancelled")


def test_a_job_that_nobody_knows_or_that_has_ended_is_left_as_it_is(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def act(succeeds: bool) -> None:
        if not succeeds:
            raise ValueError("no")

    start_worker()
    good, bad = act.send(True), act.send(False)
    assert end_of(broker, good).state is State.SUCCEEDED
    assert end_of(broker, bad).state is State.DEAD
    assert cancel(broker, good) == Act("succeeded", done=False)
    assert cancel(broker, bad) == Act("dead", done=False)
    assert JobActs(broker).cancel("5a0c1d1e-0b55-4d4e-8f5c-0e6b1c9a7d10", by="ada") is None


def test_a_lease_that_nobody_takes_over_ends_with_the_cancel(broker: RedisBroker) -> None:
    """Its worker was killed, and no other one is up."""
    broker.declare_queue("default")
    message: Message[Any] = Message("default", "t.act", (), {}, {})
    broker.send(message)
    broker.wire.fetch("default", 1, lease_ms=50, wakeable_ms=0)
    assert find(broker, message).state is State.RUNNING
    time.sleep(0.1)
    assert cancel(broker, message) == Act("cancelled", done=True)
    assert find(broker, message).state is State.CANCELLED
    assert traces(broker, message) == []


def test_a_unique_key_of_another_job_stays(broker: RedisBroker) -> None:
    """A job that has lost its window cancels nothing of the one that has the key now."""

    @dramatiq.actor(broker=broker, actor_class=Job, unique_key=None, unique_window=0.01)
    def act(*, n: int) -> None: ...

    first, second = (act.message_with_options(kwargs={"n": n}, unique_key="u") for n in (1, 2))
    broker.enqueue(first)
    time.sleep(0.05)
    broker.enqueue(second)
    cancel(broker, first)
    unique = broker.client.hgetall(Keys(broker.namespace, "default").unique)
    assert [value.split()[0].decode() for value in unique.values()] == [second.message_id]


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "waiting"])
def test_a_cancelled_job_is_still_its_tenants(broker: RedisBroker, is_held: bool) -> None:
    @dramatiq.actor(broker=broker)
    def act(word: str) -> None: ...

    message = act.send_with_options(args=('"tenant"',), tenant="acme")
    if is_held:
        [delivery], _ = broker.fetch("default", 1)
        cancel(broker, message)
        broker.settle("default", [released(delivery)])
    else:
        cancel(broker, message)
    record = broker.find_record(message.message_id) or {}
    assert (record["state"], record["tenant"]) == ("cancelled", "acme")


def test_what_a_job_has_sent_is_cancelled_on_its_way(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=broker, queue_name="webhooks")
    def follow(n: int) -> None:
        runs.append("follow")

    keys = Keys(broker.namespace, "webhooks")
    message, other = follow.message(1), follow.message(2)
    rows = [FollowUp("webhooks", each.message_id, broker.row(each, None).packed()) for each in (message, other)]
    elements = [row.packed(f"nonce:{number}") for number, row in enumerate(rows)]
    broker.client.rpush(keys.outgoing, b"nobody can read this", *elements)
    assert cancel(broker, message).state == "cancelled"
    assert broker.client.lrange(keys.outgoing, 0, -1) == [b"nobody can read this", elements[1]]
    # A relay that had read the list before comes late: it has the same nonce.
    broker.wire.store("nonce:0", rows[0], 3600)
    start_worker()
    assert end_of(broker, other).state is State.SUCCEEDED
    assert end_of(broker, message).state is State.CANCELLED
    assert runs == ["follow"]
    assert JobActs(broker).cancel(str(uuid.uuid4()), by="ada") is None
