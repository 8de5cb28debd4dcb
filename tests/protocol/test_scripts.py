"""The contract of the Lua scripts, on every Redis-compatible server that the machine has."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message

from service.broker import RedisBroker, events
from service.broker.delivery import Delivery
from service.broker.keys import Keys
from service.broker.messages import decode_message
from service.broker.outcome import Crashed, Dead, Failure, Outcome, RetryLater, Succeeded
from service.broker.outgoing import MOST, FollowUp, FollowUps
from service.broker.settlement import settlement_of
from service.broker.wire import Row
from service.middleware import chain
from service.settings import Settings
from tests.servers import RedisServer, redis_flavours

FAILURE = Failure("ValueError", "no", "Traceback ...")
QUEUE = "email"


@pytest.fixture(scope="module", params=redis_flavours().items(), ids=lambda item: item[0])
def flavour(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(request.param[1], tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def a_broker(flavour: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes brokers that share a namespace: each is a process of its own to Redis."""
    namespace = f"test-{uuid.uuid4().hex}"
    made: list[RedisBroker] = []

    def make(lease_seconds: float = 30) -> RedisBroker:
        monkeypatch.setenv("REDIS_URL", flavour.url)
        settings = Settings().model_copy(
            update={"namespace": namespace, "lease_seconds": lease_seconds, "max_payload_bytes": 8_000_000}
        )
        broker = RedisBroker(lambda: settings, chain())

        @dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE, priority=5)
        def act() -> None: ...

        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def broker(a_broker: Any) -> RedisBroker:
    return a_broker()


def a_message(priority: int | None = None, **payload: Any) -> Message:
    options = {} if priority is None else {"priority": priority}
    return Message(queue_name=QUEUE, actor_name="t.act", args=(), kwargs=payload, options=options)


def fetch(broker: RedisBroker, count: int = 10) -> list[Delivery]:
    return broker.fetch(QUEUE, count)[0]


def fetch_one(broker: RedisBroker) -> Delivery:
    [delivery] = fetch(broker)
    return delivery


def settle(broker: RedisBroker, delivery: Delivery, outcome: Outcome | None) -> bool:
    """Settle at once, and say whether that was taken."""
    delivery.outcome = outcome
    before = event_count(broker)
    broker.settle(QUEUE, [settlement_of(delivery)])
    return event_count(broker) > before


def release(broker: RedisBroker, delivery: Delivery) -> None:
    broker.release([delivery])
    broker.settle(QUEUE, [broker.settler._waiting.popleft()])


def event_count(broker: RedisBroker) -> int:
    return broker.client.xlen(Keys(broker.namespace, QUEUE).events)


def states(broker: RedisBroker) -> list[str]:
    """The states in the stream, oldest first."""
    found: list[str] = []
    for entry_id, fields in broker.client.xrange(Keys(broker.namespace, QUEUE).events):
        texts = {key.decode(): value.decode() for key, value in fields.items()}
        found += [event["state"] for event in events.read(entry_id.decode(), texts, QUEUE)]
    return found


def entries_of(broker: RedisBroker) -> list[tuple[str, dict[str, str]]]:
    """The entries of the stream with their kinds, oldest first."""
    found = broker.client.xrange(Keys(broker.namespace, QUEUE).events)
    texts = [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in found]
    return [(fields["kind"], fields) for fields in texts]


def record(broker: RedisBroker, message: Message) -> dict[str, str]:
    found = broker.find_record(message.message_id)
    assert found is not None
    return found


def keys_left(broker: RedisBroker) -> set[str]:
    """The keys that hold messages: none when all is settled."""
    keys = Keys(broker.namespace, QUEUE)
    names = ("ready", "delayed", "messages", "leases", "deadlines", "lapses", "attempts")
    names = (*names, "dead", "dead_messages", "dead_letters", "outgoing")
    return {name for name in names if broker.client.exists(getattr(keys, name))}


def test_a_send_puts_message_and_event_in_at_once(broker: RedisBroker) -> None:
    message = a_message(n=1)
    assert broker.send(message)
    found = record(broker, message)
    assert (found["state"], found["type"], found["attempt"]) == ("pending", "t.act", "0")
    assert states(broker) == ["pending"]
    assert fetch_one(broker).kwargs == {"n": 1}


def test_a_success_is_recorded_with_its_result_and_nothing_is_left(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    assert record(broker, message)["state"] == "running"
    assert settle(broker, delivery, Succeeded('{"a":1}'))
    found = record(broker, message)
    assert (found["state"], found["result"], found["attempt"]) == ("succeeded", '{"a":1}', "1")
    assert int(found["created_at"]) <= int(found["started_at"]) <= int(found["completed_at"])
    assert states(broker) == ["pending", "running", "succeeded"]
    assert keys_left(broker) == set()


def test_a_second_settlement_changes_nothing(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    assert settle(broker, delivery, Succeeded("1"))
    for outcome in (Dead(FAILURE), RetryLater(message, 0, FAILURE), Succeeded("2"), Crashed(FAILURE)):
        assert not settle(broker, delivery, outcome)
    assert record(broker, message)["result"] == "1"
    assert keys_left(broker) == set()


def test_a_holder_whose_lease_ended_can_settle_nothing(a_broker: Any) -> None:
    late, other = a_broker(lease_seconds=1), a_broker(lease_seconds=1)
    message = a_message()
    late.send(message)
    old = fetch_one(late)
    assert fetch(other) == []
    time.sleep(1.05)
    new = fetch_one(other)
    assert int(new.lease.token) > int(old.lease.token)
    assert new.lease.lapses == 1
    assert new.attempt == 1, "no attempt is counted"
    for outcome in (Succeeded("1"), Dead(FAILURE), RetryLater(message, 0, FAILURE), None):
        assert not settle(late, old, outcome)
    assert late.renew(QUEUE, [old.lease]) == [old.lease.entry]
    assert settle(other, new, Succeeded("2"))
    assert record(other, message)["result"] == "2"
    assert keys_left(other) == set()


def test_a_renewed_lease_does_not_end(a_broker: Any) -> None:
    holder, other = a_broker(lease_seconds=1), a_broker(lease_seconds=1)
    holder.send(a_message())
    delivery = fetch_one(holder)
    for _ in range(4):
        time.sleep(0.4)
        assert holder.renew(QUEUE, [delivery.lease]) == []
        assert fetch(other) == []
    assert settle(holder, delivery, Succeeded("1"))


def test_what_kills_its_worker_each_time_is_a_dead_letter_before_it_starts_once_more(a_broker: Any) -> None:
    broker = a_broker(lease_seconds=1)
    message = a_message(n=1)
    broker.send(message)
    starts = 0
    for _ in range(5):
        for delivery in fetch(broker):
            assert broker.begin(delivery.lease)
            starts += 1
        time.sleep(1.02)
    assert starts == 3
    found = record(broker, message)
    assert found["state"] == "dead"
    assert '"crashed"' in found["error"]
    assert keys_left(broker) == {"dead", "dead_messages", "dead_letters"}
    kept = broker.client.hget(Keys(broker.namespace, QUEUE).dead_messages, message.message_id)
    assert b'"n":1' in kept


def test_a_suspect_that_died_alone_is_given_back_or_dead_by_its_deliveries(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    assert settle(broker, fetch_one(broker), Crashed(FAILURE))
    second = fetch_one(broker)
    assert second.lease.is_suspect
    assert second.lease.lapses == 1
    assert settle(broker, second, Crashed(FAILURE))
    assert settle(broker, fetch_one(broker), Crashed(FAILURE))
    assert record(broker, message)["state"] == "dead"
    assert fetch(broker) == []


def test_a_retry_waits_and_counts_an_attempt(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    assert settle(broker, delivery, RetryLater(delivery.copy_for_retry("trace"), 200, FAILURE))
    found = record(broker, message)
    assert (found["state"], found["attempt"]) == ("retrying", "1")
    assert fetch(broker) == []
    time.sleep(0.25)
    again = fetch_one(broker)
    assert (again.message_id, again.attempt, again.lease.lapses) == (message.message_id, 2, 0)
    assert states(broker) == ["pending", "running", "retrying", "running"]


def test_a_lease_that_ends_is_told_of_before_the_job_starts_again(a_broker: Any) -> None:
    dies, lives = a_broker(lease_seconds=0.1), a_broker()
    message = a_message()
    dies.send(message)
    fetch_one(dies)
    time.sleep(0.15)
    assert fetch_one(lives).message_id == message.message_id
    assert states(lives) == ["pending", "running", "pending", "running"]
    [(_, told)] = [(kind, fields) for kind, fields in entries_of(lives) if kind == "settled"]
    event = json.loads(told[message.message_id])
    assert (event["attempt"], json.loads(event["error"])["type"]) == ("1", "crashed")


def test_death_keeps_the_message(broker: RedisBroker) -> None:
    message = a_message(n=7)
    broker.send(message)
    assert settle(broker, fetch_one(broker), Dead(FAILURE))
    keys = Keys(broker.namespace, QUEUE)
    assert broker.client.zrange(keys.dead, 0, -1) == [message.message_id.encode()]
    assert b'"n":7' in broker.client.hget(keys.dead_messages, message.message_id)
    assert '\\"no\\"' in record(broker, message)["error"] or '"no"' in record(broker, message)["error"]


def test_priority_decides_and_within_one_the_order_of_the_send(broker: RedisBroker) -> None:
    for number, priority in enumerate([9, 5, 0, None, 5, 0, 99, -3]):
        broker.send(a_message(priority, n=number))
    order = [delivery.kwargs["n"] for delivery in fetch(broker, 8)]
    assert order == [2, 5, 7, 1, 3, 4, 0, 6]


def test_what_comes_back_keeps_its_place(a_broker: Any) -> None:
    broker = a_broker(lease_seconds=1)
    for number in range(4):
        broker.send(a_message(n=number))
    first, second = fetch(broker, 2)
    release(broker, second)
    assert settle(broker, first, RetryLater(first.copy_for_retry(""), 0, FAILURE))
    time.sleep(0.01)
    assert [delivery.kwargs["n"] for delivery in fetch(broker, 3)] == [0, 1, 2]
    time.sleep(1.05)
    assert [delivery.kwargs["n"] for delivery in fetch(broker, 9)] == [0, 1, 2, 3], "also after its worker died"


def test_delayed_jobs_of_mixed_priority_due_at_once_come_out_by_priority(broker: RedisBroker) -> None:
    for number in range(30):
        broker.send(a_message(9 - number % 3, n=number), delay_ms=50)
    time.sleep(0.1)
    order = [(9 - d.kwargs["n"] % 3, d.kwargs["n"]) for d in fetch(broker, 30)]
    assert order == sorted(order)


def test_a_release_counts_nothing(broker: RedisBroker) -> None:
    broker.send(a_message())
    for _ in range(10):
        delivery = fetch_one(broker)
        assert (delivery.attempt, delivery.lease.lapses) == (1, 0)
        release(broker, delivery)


def test_a_large_backlog_of_lapsed_leases_comes_back_in_bounded_steps(a_broker: Any) -> None:
    broker = a_broker(lease_seconds=1)
    broker.send_many([a_message(n=number) for number in range(3000)])
    held = [delivery for _ in range(6) for delivery in fetch(broker, 500)]
    assert len(held) == 3000
    time.sleep(1.1)
    broker.send(a_message(0, n="new"))
    seen: set[Any] = set()
    calls = 0
    while len(seen) < 3001:
        calls += 1
        assert calls < 40
        for delivery in fetch(broker, 500):
            seen.add(delivery.kwargs["n"])
            settle(broker, delivery, Succeeded("1"))
        if calls == 1:
            assert "new" in seen, "what is new is not starved"


def test_the_next_due_time_is_told(broker: RedisBroker) -> None:
    assert broker.fetch(QUEUE, 1)[1] > 0.9
    broker.send(a_message(), delay_ms=300)
    assert 0 < broker.fetch(QUEUE, 1)[1] <= 0.3


def test_a_clients_own_repetition_is_stored_once_and_a_further_send_of_the_id_is_stored(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    repeated = broker.producer.next_send()
    name, number = repeated
    broker.producer.next_send = lambda: (name, number)  # type: ignore[method-assign]
    broker.send(message)  # a new number: somebody else's retry of the same id
    broker.send(message)  # the same number: our own repetition
    del broker.producer.next_send  # type: ignore[method-assign]
    assert len(fetch(broker)) == 2


def test_what_is_sent_once_within_a_time_is_stored_once(broker: RedisBroker) -> None:
    message = a_message()
    assert broker.send(message, once_within_seconds=60)
    assert not broker.send(message, once_within_seconds=60)
    settle(broker, fetch_one(broker), Succeeded("1"))
    assert not broker.send(message, once_within_seconds=60), "also when it has ended"
    assert keys_left(broker) == set()


def test_a_message_that_nobody_can_read_is_a_dead_letter_and_its_neighbours_are_not_harmed(
    broker: RedisBroker,
) -> None:
    good = [a_message(n=0), a_message(n=1)]
    bad = a_message()
    broker.send(good[0])
    broker.send(bad)
    broker.send(good[1])
    keys = Keys(broker.namespace, QUEUE)
    stored = broker.client.hget(keys.messages, bad.message_id)
    broker.client.hset(keys.messages, bad.message_id, stored.partition(b"\n")[0] + b"\n\xff{not json")
    assert [delivery.kwargs["n"] for delivery in fetch(broker)] == [0, 1]
    broker.settle(QUEUE, [broker.settler._waiting.popleft()])
    assert record(broker, bad)["state"] == "dead"
    assert broker.client.hget(keys.dead_messages, bad.message_id).endswith(b"\n\xff{not json")


def test_scripts_load_themselves_after_the_server_forgot_them(broker: RedisBroker) -> None:
    for _ in range(3):
        broker.send(a_message())
        broker.client.script_flush()
        assert settle(broker, fetch_one(broker), Succeeded("1"))


def test_namespaces_share_a_server_without_meeting(broker: RedisBroker, flavour: RedisServer) -> None:
    other_settings = Settings().model_copy(update={"namespace": "another"})
    other = RedisBroker(lambda: other_settings, chain())
    other.declare_queue(QUEUE)
    broker.send(a_message())
    assert fetch(other) == []
    assert len(fetch(broker)) == 1
    other.close()


def test_a_full_server_takes_no_sends_and_still_settles(broker: RedisBroker) -> None:
    from service.errors import BrokerUnavailable

    for _ in range(5):
        broker.send(a_message())
    broker.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(BrokerUnavailable) as refused:
            broker.send(a_message())
        assert refused.value.may_be_stored is False
        for delivery in fetch(broker):
            assert settle(broker, delivery, Succeeded("1"))
    finally:
        broker.client.config_set("maxmemory", "0")
    assert keys_left(broker) == set()


def test_an_id_that_the_database_can_not_hold_is_refused_at_once(broker: RedisBroker) -> None:
    message = Message(queue_name=QUEUE, actor_name="t", args=(), kwargs={}, options={}, message_id="mine")
    with pytest.raises(ValueError, match="UUID"):
        broker.send(message)
    assert keys_left(broker) == set()


def test_one_reply_carries_no_more_than_fits_and_the_rest_keeps_its_place(broker: RedisBroker) -> None:
    sent = [a_message(text="x" * 3_000_000) for _ in range(40)]
    assert broker.send_many(sent).failed == []
    first = fetch(broker, 40)
    assert 32 * 2**20 <= sum(len(delivery.encode()) for delivery in first) < (32 + 16 * 3) * 2**20
    rest = [*first]
    while more := fetch(broker, 40):
        rest += more
    assert [delivery.message_id for delivery in rest] == [message.message_id for message in sent]


def test_a_suspect_is_not_blamed_for_the_death_of_a_worker_in_which_it_had_not_begun(a_broker: Any) -> None:
    broker = a_broker(lease_seconds=1)
    message = a_message()
    broker.send(message)
    for lapses in (0, 1, 1, 1):
        delivery = fetch_one(broker)
        assert delivery.lease.lapses == lapses
        time.sleep(1.02)
    late = delivery
    delivery = fetch_one(broker)
    assert broker.begin(delivery.lease)
    assert broker.begin(delivery.lease), "a repetition after a lost reply"
    assert not broker.begin(late.lease)
    assert settle(broker, delivery, Succeeded("1"))


def a_follow_up(queue: str = QUEUE) -> FollowUp:
    message = Message(queue_name=queue, actor_name="t.act", args=(), kwargs={"n": 7}, options={})
    row = Row(message.message_id, "t.act", 5, None, 1, 3, message.encode())
    return FollowUp(queue, row.entry, row.packed())


def settle_with(broker: RedisBroker, delivery: Delivery, outcome: Outcome, follow_ups: list[FollowUp]) -> None:
    delivery.outcome = outcome
    delivery.follow_ups = FollowUps()
    for follow_up in follow_ups:
        delivery.follow_ups.add(follow_up)
    broker.settle(QUEUE, [settlement_of(delivery)])


def test_what_a_job_has_sent_goes_out_with_its_success_and_is_counted_on_its_way(broker: RedisBroker) -> None:
    broker.send(a_message())
    follow_ups = [a_follow_up("webhooks"), a_follow_up("ai")]
    settle_with(broker, fetch_one(broker), Succeeded("1"), follow_ups)
    assert [FollowUp.unpack(element)[1] for element in broker.wire.outgoing(QUEUE, 10)] == follow_ups
    assert broker.wire.backlog(QUEUE) == 2
    assert broker.wire.fetch(QUEUE, 1, lease_ms=1000, wakeable_ms=0).has_outgoing
    for element in broker.wire.outgoing(QUEUE, 10):
        nonce, follow_up = FollowUp.unpack(element)
        for _ in range(3):  # a relay that died in between is repeated
            broker.wire.store(nonce, follow_up, 60)
        broker.wire.remove_outgoing(QUEUE, element)
    assert broker.wire.backlog(QUEUE) == 0
    assert not broker.wire.fetch(QUEUE, 1, lease_ms=1000, wakeable_ms=0).has_outgoing
    for follow_up in follow_ups:
        [(lease, _, data)] = broker.wire.fetch(follow_up.queue, 10, lease_ms=1000, wakeable_ms=0).messages
        assert (lease.entry, decode_message(data).kwargs) == (follow_up.entry, {"n": 7})


def test_what_another_relay_has_removed_is_not_looked_for_in_the_whole_list(broker: RedisBroker) -> None:
    outgoing = Keys(broker.namespace, QUEUE).outgoing
    broker.client.rpush(outgoing, *[b"%d" % n for n in range(3000)])
    broker.client.config_resetstat()
    for element in (b"0", b"0", b"7", b"2999", b"gone"):
        broker.wire.remove_outgoing(QUEUE, element)
    assert broker.client.llen(outgoing) == 2998
    assert broker.client.lrange(outgoing, 0, 1) == [b"1", b"2"]
    assert broker.client.info("commandstats")["cmdstat_lrem"]["calls"] == 2


def test_a_relay_of_long_ago_is_known_too(broker: RedisBroker) -> None:
    follow_up = a_follow_up()
    broker.wire.store("n:1:0", follow_up, 60)
    broker.client.delete(Keys(broker.namespace, QUEUE).producer("n:1:0"))  # it is kept for an hour
    broker.wire.store("n:1:0", follow_up, 60)
    assert broker.wire.backlog(QUEUE) == 1
    broker.wire.store("n:2:0", follow_up, 60)
    assert broker.wire.backlog(QUEUE) == 2, "a further send of the same message"


@pytest.mark.parametrize("kind", ["dead", "retry", "crashed"])
def test_what_a_job_has_sent_does_not_go_out_with_a_failure(broker: RedisBroker, kind: str) -> None:
    message = a_message()
    broker.send(message)
    outcomes: dict[str, Outcome] = {
        "dead": Dead(FAILURE),
        "retry": RetryLater(message, 0, FAILURE),
        "crashed": Crashed(FAILURE),
    }
    settle_with(broker, fetch_one(broker), outcomes[kind], [a_follow_up()])
    assert broker.wire.outgoing(QUEUE, 10) == []


def test_what_a_job_has_sent_does_not_go_out_where_its_lease_was_lost(a_broker: Any) -> None:
    slow, other = a_broker(lease_seconds=0.05), a_broker()
    slow.send(a_message())
    late = fetch_one(slow)
    time.sleep(0.1)
    again = fetch_one(other)
    settle_with(slow, late, Succeeded("1"), [a_follow_up()])
    assert slow.wire.outgoing(QUEUE, 10) == []
    settle_with(other, again, Succeeded("1"), [a_follow_up()])
    settle_with(other, again, Succeeded("1"), [a_follow_up()])
    assert len(slow.wire.outgoing(QUEUE, 10)) == 1


def test_jobs_that_have_sent_very_many_are_settled_together(broker: RedisBroker) -> None:
    broker.send_many([a_message() for _ in range(12)])
    deliveries = fetch(broker, 12)
    for delivery in deliveries:
        delivery.outcome = Succeeded("1")
        delivery.follow_ups = FollowUps()
        for _ in range(MOST):
            delivery.follow_ups.add(a_follow_up())
    broker.settle(QUEUE, [settlement_of(delivery) for delivery in deliveries])
    assert broker.wire.backlog(QUEUE) == 12 * MOST
    assert keys_left(broker) == {"outgoing"}


def test_of_many_jobs_settled_together_each_sends_its_own(broker: RedisBroker) -> None:
    broker.send_many([a_message() for _ in range(40)])
    deliveries = fetch(broker, 40)
    for number, delivery in enumerate(deliveries):
        delivery.outcome = Succeeded("1") if number % 3 else Dead(FAILURE)
        delivery.follow_ups = FollowUps()
        for _ in range(number % 4):
            delivery.follow_ups.add(a_follow_up())
    sent = [each for delivery in deliveries for each in settlement_of(delivery).follow_ups]
    broker.settle(QUEUE, [settlement_of(delivery) for delivery in deliveries])
    assert [FollowUp.unpack(element)[1] for element in broker.wire.outgoing(QUEUE, 1000)] == sent
    assert len(sent) == sum(number % 4 for number in range(40) if number % 3)
    assert keys_left(broker) == {"outgoing", "dead", "dead_messages", "dead_letters"}


def test_a_job_that_is_buried_brings_back_the_next_that_waits_for_its_key(a_broker: Any) -> None:
    """It waited where it was not too long, and comes back to a worker that takes less."""
    large, small = a_broker(), a_broker()
    small.wire._most_bytes = 1000
    messages = [a_message(text="x" * length).copy(options={"idempotency_key": "k"}) for length in (1, 2000, 1)]
    for message in messages:
        large.send(message)
    first = fetch_one(large)
    assert record(large, messages[1])["state"] == record(large, messages[2])["state"] == "waiting"
    assert settle(large, first, Dead(FAILURE))
    assert fetch(small) == []
    assert record(large, messages[1])["state"] == "dead"
    assert fetch_one(small).message_id == messages[2].message_id


def test_a_lease_ends_also_where_the_sender_did_not_know_the_actor(broker: RedisBroker) -> None:
    broker.send(Message(queue_name=QUEUE, actor_name="t.once", args=(), kwargs={}, options={}))

    @dramatiq.actor(broker=broker, actor_name="t.once", queue_name=QUEUE, max_deliveries=1)
    def once() -> None: ...

    delivery = fetch_one(broker)
    assert delivery.lease.max_deliveries == 1
    delivery.outcome = Succeeded("1")
    broker.settle(QUEUE, [settlement_of(delivery)])
    assert broker.holdings[QUEUE].all() == []
