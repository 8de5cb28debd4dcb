"""Workers that crash, pause, lose replies and repeat themselves, under a clock that jumps, against a plain model."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from service.broker import RedisBroker, events
from service.broker.delivery import Delivery
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.once import remembered
from service.broker.outcome import BY_ITSELF, Crashed, Dead, Failure, RetryLater, Succeeded
from service.broker.queue_acts import QueueActs
from service.broker.scripts import source
from service.broker.settlement import Settlement, left_to_others, released, settlement_of
from service.broker.unique_keys import CONFLICTS, UniqueKey
from service.broker.wire import Wire
from service.errors import JobExists
from service.middleware.isolation import Isolation
from service.settings import Settings
from service.state.states import TRANSITIONS, State, is_final
from tests.protocol.model import Known, Model, Owner, Place, Sent
from tests.servers import RedisServer

QUEUE = "email"
LEASE_SECONDS = 30
POLL_SECONDS = LEASE_SECONDS / 3
WORKERS = 3
BOUND = 3  # small, so that what is beyond the bound is met
TOGETHER = 2
KEPT_SECONDS = 5.0
START_MS = 1_700_000_000_000
CLOCK = "clock-of-the-state-machine"
FAILURE = Failure("ValueError", "no", "Traceback ...")
OUTCOMES = ("done", "dead", "retry", "snooze", "release", "crashed", "cancelled")

workers = st.integers(0, WORKERS - 1)
#: Short ones, so that several things come due at one moment, and some beyond a lease.
delays_ms = st.sampled_from([0, 1, 1, 500, 5_000, 29_999, 30_000, 60_000])
batches = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(OUTCOMES), delays_ms), min_size=1, max_size=4)
#: A window after the end is longer than all that passes: what Redis has forgotten would count again after a jump back.
uniques = st.builds(
    UniqueKey,
    st.just(""),
    st.sampled_from([0, 0, 1000, 60_000]),
    st.sampled_from(CONFLICTS),
    st.sampled_from([("waiting", "running"), ("waiting",)]),
) | st.builds(
    UniqueKey,
    st.just(""),
    st.just(10**11),
    st.sampled_from(CONFLICTS),
    st.sampled_from([("waiting", "running", "ended"), ("waiting", "ended")]),
)
jumps_ms = st.sampled_from([-3_600_000, -31_000, -5_000, -1, 3_600_000, 10_000_000])


@cache
def under_test(name: str) -> str:
    """The script with the test's clock, and with small bounds."""
    clock = f'local function now_ms()\n    return tonumber(redis.call("GET", "{CLOCK}"))\nend\n'
    text, replaced = re.subn(r"local function now_ms\(\)\n.*?\nend\n", clock, source(name), count=1, flags=re.DOTALL)
    assert replaced == 1
    text = re.sub(r"local TOGETHER = \d+", f"local TOGETHER = {TOGETHER}", text)
    return re.sub(r"local BOUND = \d+", f"local BOUND = {BOUND}", text)


@dataclass
class Send:
    """One send as its producer would repeat it."""

    number: tuple[str, int]
    messages: list[Message]
    delay_ms: int | None
    once: bool
    was_stored: bool = True


@dataclass
class Fleet:
    """The brokers of several worker processes on one server, and what each of them remembers."""

    brokers: list[RedisBroker]
    client: Any
    #: Subscribed to the channels of all workers that live.
    listener: Any
    held: list[list[Delivery]] = field(default_factory=list)
    last_sends: list[Send | None] = field(default_factory=list)
    #: Names that are new, and the same each time that the steps are: Hypothesis repeats them to find the shortest.
    numbers: Iterator[int] = field(default_factory=count)

    def start_anew(self) -> None:
        """Give all brokers an empty namespace."""
        self.listener.unsubscribe()
        namespace = f"machine-{uuid.uuid4().hex}"
        self.numbers = count()
        self.held = [[] for _ in self.brokers]
        self.last_sends = [None for _ in self.brokers]
        for broker in self.brokers:
            broker.namespace = namespace
            broker.holdings.clear()
            self.restart(broker)

    def restart(self, broker: RedisBroker) -> None:
        """Make it another process."""
        self.listener.unsubscribe(_channel(broker))
        broker.worker_id = f"worker-{next(self.numbers)}"
        self.listener.subscribe(_channel(broker))
        broker.wire.close()
        broker.wire = Wire(broker.client, broker.namespace, broker.worker_id)

    def called(self) -> set[str]:
        """Return the workers that were called since this was asked last."""
        self.listener.ping()  # its answer comes after all that was published before
        workers = set[str]()
        while (message := self.listener.get_message(timeout=10))["type"] != "pong":
            if message["type"] == "message" and not message["data"].startswith(b"cancel "):
                workers.add(message["channel"].decode().rpartition(":")[2])
        return workers


def _log(lines: bytes) -> list[int]:
    """The attempt of each line of a log, 0 for a replay."""
    return [json.loads(line).get("attempt", 0) for line in lines.splitlines()]


def _channel(broker: RedisBroker) -> str:
    return f"{broker.namespace}:wake:{broker.worker_id}"


@pytest.fixture
def fleet(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setattr("service.broker.wire.source", under_test)
    with_lease = Settings().model_copy(update={"lease_seconds": float(LEASE_SECONDS)})
    brokers: list[RedisBroker] = []
    for _ in range(WORKERS):
        broker = RedisBroker(lambda: with_lease, [Isolation()])
        for most in (1, 2, 3):
            dramatiq.actor(
                lambda: None, actor_name=f"t.{most}", queue_name=QUEUE, broker=broker, max_deliveries=most, priority=5
            )
        broker.wakeups.subscribed = True  # so that idle workers register themselves
        brokers.append(broker)
    with brokers[0].client.pubsub() as listener:
        yield Fleet(brokers, brokers[0].client, listener)
    brokers[0].client.delete(CLOCK)
    for broker in brokers:
        broker.close()


class Machine(RuleBasedStateMachine):
    """Every rule is done to Redis and to the model; every invariant is read from Redis."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        fleet.start_anew()
        self.client = fleet.client
        self.keys = Keys(fleet.brokers[0].namespace, QUEUE)
        self.model = Model(now=START_MS, lease_ms=LEASE_SECONDS * 1000, bound=BOUND, together=TOGETHER)
        self.client.set(CLOCK, START_MS)
        self.sent: list[Message] = []
        #: All that was ever handed to a worker, also to one that is dead or paused by now.
        self.deliveries: list[Delivery] = []
        self.tokens: set[int] = set()
        self.last_event = "-"
        self.lives: dict[str, list[list[str]]] = {}
        #: Idle workers with the time at which each asks by itself; those called since they asked.
        self.asks_at: dict[str, int] = {}
        self.called: set[str] = set()

    def teardown(self) -> None:
        keys = self.client.keys(f"{{{self.fleet.brokers[0].namespace}:*")
        if keys:
            self.client.unlink(*keys)

    # Sending

    def new_message(self, priority: int | None, most: int, retries: int, key: str | None = None) -> Message:
        said: dict[str, Any] = {} if priority is None else {"priority": priority}
        if key:
            said["idempotency_key"] = key
        return Message(
            queue_name=QUEUE,
            actor_name=f"t.{most}",
            args=(),
            kwargs={},
            options={**said, "retries": retries},
            message_id=str(uuid.UUID(int=next(self.fleet.numbers))),
        )

    def send(self, worker: int, messages: list[Message], delay_ms: int | None, once: bool) -> None:
        broker = self.fleet.brokers[worker]
        send = Send(broker.producer.next_send(), messages, delay_ms, once)
        self.fleet.last_sends[worker] = send
        sent = [
            Sent(
                message.message_id,
                min(max(message.options.get("priority", 5), 0), 9),
                message.options["retries"] + 1,
                int(message.actor_name[-1]),
                message.options.get("idempotency_key", ""),
            )
            for message in messages
        ]
        stored = self.model.send(sent, delay_ms, once)
        send.was_stored = stored
        assert self.carry_out_send(worker, send) == stored
        self.sent += messages

    def carry_out_send(self, worker: int, send: Send) -> bool:
        broker = self.fleet.brokers[worker]
        rows = [broker.row(message, send.delay_ms) for message in send.messages]
        return broker.wire.enqueue(QUEUE, rows, send.number, 3600 if send.once else 0)

    @rule(
        worker=workers,
        sends=st.lists(
            st.tuples(
                st.sampled_from([0, 5, 5, 5, 9, None, -3, 99]),
                st.sampled_from([1, 2, 3, 3]),
                st.sampled_from([0, 0, 2]),
                st.sampled_from([None, None, "a", "a", "a b", "é:"]),
            ),
            min_size=1,
            max_size=5,
        ),
        delay_ms=st.none() | delays_ms,
    )
    def send_new(self, worker: int, sends: list[tuple[int | None, int, int, str | None]], delay_ms: int | None) -> None:
        messages = [self.new_message(*one) for one in sends]
        self.send(worker, messages, delay_ms, once=False)

    @precondition(lambda self: self.sent)
    @rule(worker=workers, which=st.lists(st.integers(0, 50), min_size=1, max_size=3), delay_ms=st.none() | delays_ms)
    def send_known_messages_again(self, worker: int, which: list[int], delay_ms: int | None) -> None:
        self.send(worker, [self.sent[number % len(self.sent)] for number in which], delay_ms, once=False)

    @rule(worker=workers, again=st.booleans(), which=st.integers(0, 50))
    def send_once(self, worker: int, again: bool, which: int) -> None:
        message = self.sent[which % len(self.sent)] if again and self.sent else self.new_message(None, 3, 0)
        self.send(worker, [message], None, once=True)

    @rule(
        worker=workers,
        key=st.sampled_from("uvw"),
        idempotency_key=st.sampled_from([None, "a"]),
        priority=st.sampled_from([5, 5, 9]),
        unique=uniques,
        delay_ms=st.none() | delays_ms,
    )
    def send_unique(
        self,
        worker: int,
        key: str,
        idempotency_key: str | None,
        priority: int,
        unique: UniqueKey,
        delay_ms: int | None,
    ) -> None:
        broker, unique = self.fleet.brokers[worker], unique._replace(key=key)
        message = self.new_message(priority, 3, 0, idempotency_key)
        message.options["unique_key"] = key
        row = broker.row(message, delay_ms)._replace(unique=unique)
        self.fleet.last_sends[worker] = None
        sent = Sent(message.message_id, priority, 1, 3, idempotency_key or "")
        how, met = self.model.send_unique(sent, unique, delay_ms)
        try:
            found = broker.wire.enqueue(QUEUE, [row], broker.producer.next_send())
        except JobExists as error:
            found = ("exists", error.job_id)
        assert found == ((how, met) if met else True)

    @precondition(lambda self: any(self.fleet.last_sends))
    @rule(worker=workers)
    def repeat_a_send_whose_reply_was_dropped(self, worker: int) -> None:
        if send := self.fleet.last_sends[worker]:
            assert self.carry_out_send(worker, send) == send.was_stored, "the answer is that of the first time"

    # Working

    @rule(worker=workers, most=st.integers(1, 6), reply_is_dropped=st.sampled_from([False, False, False, True]))
    def fetch(self, worker: int, most: int, *, reply_is_dropped: bool) -> None:
        broker = self.fleet.brokers[worker]
        leased, is_more = self.model.fetch(most)
        expected = [item for item in leased if not item.is_duplicate]
        deliveries, wait_seconds = broker.fetch(QUEUE, most)
        duplicates = [broker.settler._waiting.popleft() for _ in range(len(broker.settler._waiting))]
        assert [(each.lease.entry, int(each.lease.token)) for each in duplicates] == [
            (item.name, item.token) for item in leased if item.is_duplicate
        ]
        assert [self._seen(delivery) for delivery in deliveries] == [
            (item.name, item.token, item.message_id, item.attempt, item.lapses, item.most, item.created)
            for item in expected
        ]
        tokens = {int(delivery.lease.token) for delivery in [*deliveries, *duplicates]}
        assert len(tokens) == len(leased)
        assert not tokens & self.tokens, "no token is given twice"
        self.tokens |= tokens
        soonest = self.model.soonest()
        until_due = POLL_SECONDS if soonest is None else min(POLL_SECONDS, soonest / 1000)
        assert wait_seconds == (0 if is_more or (duplicates and not deliveries) else until_due)
        self.asks_at.pop(broker.worker_id, None)
        self.called.discard(broker.worker_id)
        if reply_is_dropped:
            self.called.add(broker.worker_id)  # it asks again, seconds later at most: as one that is called
        if wait_seconds and not reply_is_dropped:
            self.asks_at[broker.worker_id] = self.model.now + int(wait_seconds * 1000)
        if not reply_is_dropped:
            self.deliveries += deliveries
            self.fleet.held[worker] += deliveries
            self._settle_duplicates(worker, duplicates)

    def _settle_duplicates(self, worker: int, duplicates: list[Settlement]) -> None:
        for each in duplicates:
            known = self.model.items[each.lease.entry].met
            assert known is not None
            assert (each.outcome, known.word) in (("done", "done"), ("dead", "failed"))
            assert json.loads(each.event)["skipped"] == "true"
            self.model.settle(each.lease.entry, int(each.lease.token), each.outcome, 0)
        self.model.settled()
        if duplicates:
            self.fleet.brokers[worker].settle(QUEUE, duplicates)

    @staticmethod
    def _seen(delivery: Delivery) -> tuple[Any, ...]:
        lease = delivery.lease
        seen = (lease.entry, int(lease.token), delivery.message_id, lease.attempt, lease.lapses)
        return (*seen, lease.max_deliveries, lease.created_ms)

    @precondition(lambda self: any(map(self._holds, self.deliveries)))
    @rule(batch=batches, worker=workers, reply_is_dropped=st.booleans())
    def settle(self, batch: list[tuple[int, str, int]], worker: int, reply_is_dropped: bool) -> None:
        self._settle(list(filter(self._holds, self.deliveries)), batch, worker, reply_is_dropped)

    @precondition(lambda self: self.deliveries)
    @rule(batch=batches, worker=workers)
    def settle_late(self, batch: list[tuple[int, str, int]], worker: int) -> None:
        """Whatever was ever handed out: what was settled, or lost its lease, must not change anything."""
        self._settle(self.deliveries, batch, worker, reply_is_dropped=False)

    def _settle(
        self, choice: list[Delivery], batch: list[tuple[int, str, int]], worker: int, reply_is_dropped: bool
    ) -> None:
        settlements: list[Settlement] = []
        for which, outcome, delay_ms in batch:
            delivery = choice[which % len(choice)]
            settlements.append(self._settlement(delivery, outcome, delay_ms))
            self._note(settlements[-1], outcome, delay_ms)
        self.model.settled()
        broker = self.fleet.brokers[worker]
        broker.settle(QUEUE, settlements)
        if reply_is_dropped:
            broker.settle(QUEUE, settlements)

    def _note(self, settlement: Settlement, outcome: str, delay_ms: int) -> None:
        lease = settlement.lease
        self.model.settle(lease.entry, int(lease.token), outcome, delay_ms, settlement.keep_ms)

    def _holds(self, delivery: Delivery) -> bool:
        return self.model.holds(delivery.lease.entry, int(delivery.lease.token))

    @classmethod
    def _settlement(cls, delivery: Delivery, outcome: str, delay_ms: int) -> Settlement:
        settlement = cls._without_key(delivery, outcome, delay_ms)
        if not delivery.lease.key:
            return settlement
        remembers = delivery.lease.max_deliveries == 2
        return remembered(settlement, {"idempotency_ttl": KEPT_SECONDS, "remember_failure": remembers})

    @staticmethod
    def _without_key(delivery: Delivery, outcome: str, delay_ms: int) -> Settlement:
        match outcome:
            case "done":
                delivery.outcome = Succeeded("1")
            case "dead":
                delivery.outcome = Dead(FAILURE)
            case "retry":
                delivery.outcome = RetryLater(delivery.copy_for_retry("trace"), delay_ms, FAILURE)
            case "crashed":
                delivery.outcome = Crashed(FAILURE)
            case "cancelled":
                delivery.outcome = BY_ITSELF
            case "release":
                return released(delivery)
            case "snooze":
                return left_to_others(delivery.lease, delivery.actor_name, delivery.encode(), delay_ms)
            case _:
                return Settlement(delivery.lease, outcome)
        return settlement_of(delivery)

    @precondition(lambda self: self.model.dead)
    @rule(which=st.integers(0, 50), worker=workers, delay_ms=st.none() | delays_ms, is_outdated=st.booleans())
    def replay(self, which: int, worker: int, delay_ms: int | None, is_outdated: bool) -> None:
        name = sorted(self.model.dead)[which % len(self.model.dead)]
        died = self.model.dead[name].died - is_outdated
        data = self.client.hget(self.keys.dead_messages, name).partition(b"\n")[2]
        message = Message.decode(data)
        message.options["retries"] = 0
        unique = self.model.dead[name].item.unique
        expected = self.model.replay(name, died, delay_ms)
        for _ in range(2):
            try:
                done = self.fleet.brokers[worker].wire.replay(
                    QUEUE,
                    name.encode(),
                    died,
                    request=f"{name}-{died}",
                    delay_ms=delay_ms,
                    log='{"by": "ada"}',
                    data=message.encode(),
                    unique=unique,
                )
            except JobExists:
                done = -4
            assert done == expected
            expected = 0 if expected == 1 else expected

    # Operating

    @precondition(lambda self: self.model.items)
    @rule(which=st.integers(0, 50), worker=workers)
    def cancel(self, which: int, worker: int) -> None:
        self._cancel(sorted(self.model.items)[which % len(self.model.items)], worker)

    @precondition(lambda self: self.model.finals)
    @rule(which=st.integers(0, 50), worker=workers)
    def cancel_late(self, which: int, worker: int) -> None:
        self._cancel(sorted(self.model.finals)[which % len(self.model.finals)], worker)

    def _cancel(self, name: str, worker: int) -> None:
        found = JobActs(self.fleet.brokers[worker]).cancel(name, by="ada", why="a test")
        assert (found and found.state) == self.model.cancel(name)
        assert found is None or found.done == (found.state in ("cancelled", "running"))

    @precondition(lambda self: self.model.items)
    @rule(which=st.integers(0, 50), worker=workers, priority=st.none() | st.integers(0, 9), delay_ms=delays_ms)
    def reschedule(self, which: int, worker: int, priority: int | None, delay_ms: int) -> None:
        name = sorted(self.model.items)[which % len(self.model.items)]
        delay = None if delay_ms == 1 else delay_ms
        found = JobActs(self.fleet.brokers[worker]).reschedule(name, by="ada", priority=priority, delay_ms=delay)
        assert found
        state = self.model.reschedule(name, priority, None if delay is None else self.model.now + delay)
        assert (found.state, found.done) == (state, state != "running")
        if found.done:
            item = self.model.items[name]
            assert found.priority == item.score // 2**49
            assert (found.run_at is None) == (item.place is not Place.DELAYED)

    @rule(worker=workers, is_paused=st.booleans())
    def pause_or_resume(self, worker: int, is_paused: bool) -> None:
        acts = QueueActs(self.fleet.brokers[worker])
        change = acts.pause if is_paused else acts.resume
        assert change(QUEUE, by="ada") == (is_paused != self.model.is_paused)
        self.model.is_paused = is_paused

    @precondition(lambda self: len(self.model.items) > 3)
    @rule(worker=workers, keep=st.booleans(), is_meant=st.sampled_from([False, False, False, True]))
    def purge(self, worker: int, keep: bool, is_meant: bool) -> None:
        if is_meant:
            assert QueueActs(self.fleet.brokers[worker]).purge(QUEUE, by="ada", keep=keep) == self.model.purge(
                keep=keep
            )

    @rule(worker=workers)
    def count(self, worker: int) -> None:
        counts = QueueActs(self.fleet.brokers[worker]).counts_of(QUEUE)
        items = self.model.items.values()
        assert counts.running == len(self.model.names(Place.LEASED))
        assert counts.waiting == len(self.model.names(Place.WAITING))
        assert counts.dead == len(self.model.dead)
        assert counts.purgeable == len(items) - counts.running
        assert (counts.pause is not None) == self.model.is_paused
        assert counts.paused == (len(self.model.names(Place.READY)) if self.model.is_paused else 0)
        assert (counts.oldest_seconds is not None) == bool(self.model.names(Place.READY))

    # Working on

    @precondition(lambda self: len(self.model.names(Place.READY)) < 8 and not self.model.is_paused)
    @rule(idle=st.sets(workers, min_size=1))
    def work_until_nothing_is_left(self, idle: set[int]) -> None:
        """Only an empty queue has idle workers, and by chance it is seldom empty."""
        while self.model.names(Place.READY) or self.model.soonest() == 0:
            first = len(self.deliveries)
            self.fetch(min(idle), 6, reply_is_dropped=False)
            for delivery in self.deliveries[first:]:
                settlement = self._settlement(delivery, "done", 0)
                self._note(settlement, "done", 0)
                self.model.settled()
                self.fleet.brokers[0].settle(QUEUE, [settlement])
        for worker in idle:
            self.fetch(worker, 1, reply_is_dropped=False)
        self.called.clear()  # those that died after a call; from now on the idle ones are there for it

    @rule(worker=workers)
    def renew(self, worker: int) -> None:
        leases = [delivery.lease for delivery in self.fleet.held[worker]]
        lost = self.fleet.brokers[worker].renew(QUEUE, leases)
        assert lost == self.model.renew([(lease.entry, int(lease.token)) for lease in leases])

    @precondition(lambda self: self.deliveries)
    @rule(which=st.integers(0, 50))
    def begin(self, which: int) -> None:
        """Also what was settled long ago, or is held elsewhere by now."""
        lease = self.deliveries[which % len(self.deliveries)].lease
        assert self.fleet.brokers[0].begin(lease) == self.model.begin(lease.entry, int(lease.token))

    @rule(worker=workers, other=workers, scripts_are_forgotten=st.booleans(), had_begun=st.booleans())
    def crash(self, worker: int, other: int, scripts_are_forgotten: bool, had_begun: bool) -> None:
        """Another process in its place renews nothing of the old one, which may still be there and settle late."""
        for delivery in self.fleet.held[worker] if had_begun else []:
            self.begin(self.deliveries.index(delivery))
        self.fleet.held[worker].clear()
        self.fleet.restart(self.fleet.brokers[worker])
        if scripts_are_forgotten:
            self.client.script_flush()
        for survivor in {*range(WORKERS)} - {worker}:
            self.renew(survivor)
        self.time_passes(LEASE_SECONDS * 1000 - 1)
        for survivor in {*range(WORKERS)} - {worker}:
            self.renew(survivor)
        self.time_passes(1)
        self.fetch(other, 6, reply_is_dropped=False)

    # Surroundings

    @rule(milliseconds=delays_ms | st.integers(1, 70_000))
    def time_passes(self, milliseconds: int) -> None:
        self._set_clock(self.model.now + milliseconds)
        # Who asks by itself does so in time; here it may be late, and is then as one that was called.
        self.called |= {worker for worker, at in self.asks_at.items() if at <= self.model.now}
        self.asks_at = {worker: at for worker, at in self.asks_at.items() if at > self.model.now}

    @rule(milliseconds=jumps_ms)
    def clock_jumps(self, milliseconds: int) -> None:
        self._set_clock(self.model.now + milliseconds)
        self.asks_at.clear()  # the sleep of an idle worker is its own clock's

    def _set_clock(self, now: int) -> None:
        self.model.now = now
        self.client.set(CLOCK, now)

    # What holds at all times

    @invariant()
    def redis_agrees_with_the_model(self) -> None:
        keys = self.keys
        with self.client.pipeline(transaction=False) as pipeline:
            for key in (keys.ready, keys.delayed, keys.deadlines, keys.dead, keys.waiters, keys.once_until):
                pipeline.zrange(key, 0, -1, withscores=True)
            for key in (
                keys.messages,
                keys.leases,
                keys.lapses,
                keys.dead_messages,
                keys.finals,
                keys.once,
                keys.dead_letters,
                keys.attempts,
                keys.cancels,
                keys.unique,
            ):
                pipeline.hgetall(key)
            pipeline.zrange(keys.once_waiting, 0, -1)
            pipeline.zrange(keys.untold, 0, -1)
            pipeline.get(keys.counter)
            pipeline.xrange(keys.events, self.last_event, "+")
            *found, waiting, untold, counter, stream = pipeline.execute()
        ready, delayed, deadlines, dead, waiters, once_until = [
            {name.decode(): int(score) for name, score in members} for members in found[:6]
        ]
        messages, leases, lapses, dead_messages, finals, once, letters, attempts, cancels, unique = [
            {name.decode(): value for name, value in fields.items()} for fields in found[6:]
        ]
        assert set(deadlines) == set(leases)
        self._each_is_in_one_place([set(ready), set(delayed), set(leases), self._waiting(waiting)], set(messages))
        self._keys_are_held_by_one(once, once_until)
        self._unique_keys_are_those_of_the_model(unique)
        items = self.model.items
        assert set(messages) == set(items), "nothing is lost, and nothing comes from nowhere"
        assert ready == {name: items[name].score for name in self.model.names(Place.READY)}
        assert delayed == {name: items[name].due for name in self.model.names(Place.DELAYED)}
        assert deadlines == {name: items[name].deadline for name in self.model.names(Place.LEASED)}
        tokens = [int(lease.split()[0]) for lease in leases.values()]
        assert len(set(tokens)) == len(tokens)
        assert dict(zip(leases, tokens, strict=True)) == {
            name: items[name].token for name in self.model.names(Place.LEASED)
        }
        marked = {name for name, lease in leases.items() if lease.partition(b"\t")[0].endswith(b" cancelled")}
        assert marked == set(cancels) == {name for name, item in items.items() if item.is_cancelled}
        self._headers_tell_the_truth(messages)
        assert {name: int(lapsed) for name, lapsed in lapses.items()} == {
            name: item.lapses for name, item in items.items() if item.lapses
        }
        assert all(item.lapses < item.most for item in items.values())
        assert dead == {name: letter.died for name, letter in self.model.dead.items()}
        assert set(dead_messages) == set(letters) == set(dead)
        for name, letter in letters.items():
            assert _log(letter.partition(b"\n")[2]) == self.model.dead[name].log
        assert {name: _log(log) for name, log in attempts.items()} == {
            name: item.log for name, item in items.items() if item.log
        }
        assert {f"{died} {name}" for name, died in dead.items()} <= {death.decode() for death in untold}
        assert set(finals) == self.model.finals
        assert int(counter or 0) == self.model.counter
        self._events_are_an_allowed_path(stream)
        self._nobody_sleeps_through_work(ready, delayed, waiters)

    def _each_is_in_one_place(self, places: list[set[str]], messages: set[str]) -> None:
        assert sum(map(len, places)) == len(messages)
        assert set[str]().union(*places) == messages

    def _waiting(self, members: list[bytes]) -> set[str]:
        found = set[str]()
        for member in members:
            key, score, name = member.decode().split("\t")
            assert (key, int(score)) == (self.model.items[name].key, self.model.items[name].score)
            found.add(name)
        assert found == self.model.names(Place.WAITING)
        return found

    def _keys_are_held_by_one(self, once: dict[str, bytes], once_until: dict[str, int]) -> None:
        found = {key: Known(*self._known(value)) for key, value in once.items()}
        assert found == self.model.keys
        assert once_until == {key: known.number for key, known in found.items() if known.word != "claimed"}
        items = self.model.items.values()
        running = [item.key for item in items if item.key and item.place is Place.LEASED and not item.is_duplicate]
        assert len(running) == len(set(running)), "two of one key run"
        goes_on = {item.key for item in items if item.place in (Place.READY, Place.LEASED)}
        assert {item.key for item in items if item.place is Place.WAITING} <= goes_on, "nobody brings them back"

    def _unique_keys_are_those_of_the_model(self, unique: dict[str, bytes]) -> None:
        found = {key: value.decode().split(" ") for key, value in unique.items()}
        owners = {key: Owner(words[0], int(words[1]), words[2:] == ["ended"]) for key, words in found.items()}
        assert owners.items() <= self.model.unique.items()
        assert self.model.counting().items() <= owners.items()

    @staticmethod
    def _known(value: bytes) -> tuple[str, int, str]:
        word, number, owner, *_ = value.decode().split(" ", 3)
        return word, int(number), owner

    def _headers_tell_the_truth(self, messages: dict[str, bytes]) -> None:
        for name, stored in messages.items():
            item = self.model.items[name]
            header, _, encoded = stored.partition(b"\n")
            words, _, key = header.decode().partition("\t")
            assert key == item.key
            score, created, attempt, most, actor = words.split(" ")
            assert (int(score), int(created), int(attempt)) == (item.score, item.created, item.attempt)
            assert (int(most), actor) == (item.most, f"t.{item.most}")
            message = Message.decode(encoded)
            assert (message.message_id, message.options["retries"]) == (item.message_id, item.attempt - 1)

    def _events_are_an_allowed_path(self, stream: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry_id, fields in stream:
            texts = {name.decode(): value.decode() for name, value in fields.items()}
            head = {name: value for name, value in texts.items() if name in events.HEAD_FIELDS}
            for name, value in texts.items():
                if name in head:
                    continue
                [event] = events.read(entry_id.decode(), {**head, name: value}, QUEUE)
                assert event["job_id"] == name.partition("~")[0]
                ended = is_final(State(self.lives[name][-1][-1])) if name in self.lives else False
                if head["kind"] == "sent" or (
                    head["kind"] == "replayed" and ended and self.lives[name][-1][-1] != "dead"
                ):
                    self.lives.setdefault(name, []).append([])
                self.lives[name][-1].append(event["state"])
            self.last_event = f"({entry_id.decode()}"
        assert self.lives == self.model.lives
        for name, lives in self.lives.items():
            for life in lives:
                assert all(State(after) in TRANSITIONS[State(before)] for before, after in pairwise(life)), (name, life)
            if is_final(State(lives[-1][-1])):
                assert name not in self.model.items

    def _nobody_sleeps_through_work(
        self, ready: dict[str, int], delayed: dict[str, int], waiters: dict[str, int]
    ) -> None:
        """An idle worker is called for what comes before it would ask by itself; one call is enough."""
        self.called |= self.fleet.called()
        asleep = {worker: at for worker, at in self.asks_at.items() if worker in waiters}
        if asleep and not self.called:
            assert not ready or self.model.is_paused
            assert min(delayed.values(), default=self.model.now + 10**9) >= min(asleep.values())


def drive(fleet: Fleet, examples: int) -> None:
    run_state_machine_as_test(
        lambda: Machine(fleet),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(400)
def test_the_scripts_do_what_the_model_does(fleet: Fleet) -> None:
    drive(fleet, 200)


def test_another_idle_worker_is_called_when_the_one_that_knew_the_next_due_time_gets_busy(fleet: Fleet) -> None:
    machine = Machine(fleet)
    one_message: list[tuple[int | None, int, int, str | None]] = [(5, 3, 0, None)]
    machine.work_until_nothing_is_left({0, 1})
    machine.redis_agrees_with_the_model()
    machine.send_new(0, one_message, delay_ms=500)
    machine.redis_agrees_with_the_model()
    assert machine.called == {fleet.brokers[1].worker_id}
    machine.fetch(1, 1, reply_is_dropped=False)
    machine.redis_agrees_with_the_model()
    machine.send_new(0, one_message, delay_ms=600)
    machine.redis_agrees_with_the_model()
    assert machine.called == set(), "it asks at the first due time by itself"
    machine.time_passes(500)
    machine.fetch(1, 1, reply_is_dropped=False)
    machine.redis_agrees_with_the_model()
    assert machine.called == {fleet.brokers[0].worker_id}
    machine.teardown()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_scripts_do_what_the_model_does_in_the_long_run(fleet: Fleet) -> None:
    drive(fleet, 8000)
