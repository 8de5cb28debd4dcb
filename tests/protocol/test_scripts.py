"""The contract of the Lua scripts, on every Redis-compatible server that the machine has."""

import uuid
from collections.abc import Iterator

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.consumer import Delivery
from service.broker.keys import Keys
from service.broker.messages import decode_message
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Succeeded
from service.middleware import chain
from service.settings import Settings
from tests.servers import RedisServer, redis_flavours

FAILURE = Failure("ValueError", "no", "Traceback ...")


@pytest.fixture(scope="module", params=redis_flavours().items(), ids=lambda item: item[0])
def flavour(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(request.param[1], tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def broker(flavour: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    monkeypatch.setenv("REDIS_URL", flavour.url)
    monkeypatch.setenv("CALLBOARD_NAMESPACE", f"test-{uuid.uuid4().hex}")
    settings = Settings()
    broker = RedisBroker(lambda: settings, chain())
    broker.declare_queue("email")
    yield broker
    broker.close()


def a_message() -> Message:
    return Message(queue_name="email", actor_name="t.act", args=(), kwargs={"n": 1}, options={})


def fetch_one(broker: RedisBroker, queue: str = "email") -> Delivery:
    [data] = broker.fetch(queue, 10)
    return Delivery(decode_message(data))


def settle(broker: RedisBroker, delivery: Delivery, outcome: Outcome | None, queue: str = "email") -> bool:
    delivery.outcome = outcome
    return broker.settle(delivery, queue)


def states(broker: RedisBroker) -> list[str]:
    """The states in the stream, oldest first."""
    entries = broker.client.xrange(Keys(broker.namespace, "email").events)
    return [fields[b"state"].decode() for _, fields in entries]


def size_of(broker: RedisBroker) -> int:
    return broker._stock("qsize", "email")


def test_a_send_puts_message_and_event_in_at_once(broker: RedisBroker) -> None:
    message = a_message()
    assert broker.send(message)
    record = broker.find_record(message.message_id)
    assert record is not None
    assert record["state"] == "pending"
    assert record["seq"] == "1"
    assert record["type"] == "t.act"
    assert states(broker) == ["pending"]
    assert fetch_one(broker).kwargs == {"n": 1}


def test_a_success_is_recorded_with_its_result_and_the_queue_is_empty(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    broker.record_start(delivery)
    assert settle(broker, delivery, Succeeded('{"a":1}'))
    record = broker.find_record(message.message_id)
    assert record is not None
    assert (record["state"], record["result"], record["attempt"], record["seq"]) == ("succeeded", '{"a":1}', "1", "3")
    assert int(record["created_at"]) <= int(record["started_at"]) <= int(record["completed_at"])
    assert states(broker) == ["pending", "running", "succeeded"]
    assert size_of(broker) == 0


def test_a_second_settlement_changes_nothing(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    assert settle(broker, delivery, Succeeded("1"))
    assert not settle(broker, delivery, Dead(FAILURE))
    assert not settle(broker, delivery, RetryLater(message, 0, FAILURE))
    assert states(broker) == ["pending", "succeeded"]
    assert size_of(broker) == 0


def test_a_holder_that_lost_its_message_can_settle_nothing(broker: RedisBroker) -> None:
    broker.send(a_message())
    late = fetch_one(broker)
    broker.requeue("email", [late.redis_message_id])
    assert not settle(broker, late, Succeeded("1"))
    assert states(broker) == ["pending"]
    assert settle(broker, fetch_one(broker), Succeeded("2"))


def test_a_retry_moves_the_message_to_the_delay_queue_with_its_event(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    broker.record_start(delivery)
    assert settle(broker, delivery, RetryLater(delivery.copy_for_retry(""), 0, FAILURE))
    delayed = fetch_one(broker, "email.DQ")
    assert delayed.message_id == message.message_id
    assert delayed.attempt == 2
    assert "eta" in delayed.options
    assert states(broker) == ["pending", "running", "retrying"]


def test_death_keeps_the_message_and_the_reason(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    delivery = fetch_one(broker)
    assert settle(broker, delivery, Dead(FAILURE))
    keys = Keys(broker.namespace, "email")
    assert broker.client.zrange(keys.dead, 0, -1) == [delivery.redis_message_id.encode()]
    kept = broker.client.hget(keys.dead_messages, delivery.redis_message_id)
    assert decode_message(kept).message_id == message.message_id
    record = broker.find_record(message.message_id)
    assert record is not None
    assert '"no"' in record["error"]
    assert size_of(broker) == 0


def test_a_final_state_is_never_left(broker: RedisBroker) -> None:
    message = a_message()
    broker.send(message)
    first = fetch_one(broker)
    settle(broker, first, Succeeded("1"))
    broker.send(message)
    second = fetch_one(broker)
    broker.record_start(second)
    settle(broker, second, Dead(FAILURE))
    assert states(broker) == ["pending", "succeeded"]


def test_a_message_that_comes_due_is_pending_and_a_retry_that_does_stays_retrying(broker: RedisBroker) -> None:
    scheduled = a_message()
    broker.send(scheduled, delay_ms=0)
    broker.send(scheduled)
    assert states(broker) == ["scheduled", "pending"]
    delivery = fetch_one(broker)
    broker.record_start(delivery)
    settle(broker, delivery, RetryLater(delivery.copy_for_retry(""), 0, FAILURE))
    broker.send(delivery.copy_for_retry(""))
    assert states(broker) == ["scheduled", "pending", "running", "retrying"]


def test_what_is_sent_once_within_a_time_is_stored_once(broker: RedisBroker) -> None:
    message = a_message()
    assert broker.send(message, once_within_seconds=60)
    assert not broker.send(message, once_within_seconds=60)
    settle(broker, fetch_one(broker), Succeeded("1"))
    broker.client.delete(Keys(broker.namespace, "email").job(message.message_id))
    assert not broker.send(message, once_within_seconds=60), "also when it has ended and is projected"
    assert size_of(broker) == 0


def test_scripts_load_themselves_after_the_server_forgot_them(broker: RedisBroker) -> None:
    for _ in range(3):
        broker.send(a_message())
        broker.client.script_flush()
        assert settle(broker, fetch_one(broker), Succeeded("1"))


def test_namespaces_share_a_server_without_meeting(broker: RedisBroker, flavour: RedisServer) -> None:
    other_settings = Settings().model_copy(update={"namespace": "another"})
    other = RedisBroker(lambda: other_settings, chain())
    other.declare_queue("email")
    broker.send(a_message())
    assert other.fetch("email", 10) == []
    assert len(broker.fetch("email", 10)) == 1
    other.close()


def test_an_id_that_the_database_can_not_hold_is_refused_at_once(broker: RedisBroker) -> None:
    message = Message(queue_name="email", actor_name="t", args=(), kwargs={}, options={}, message_id="mine")
    with pytest.raises(ValueError, match="UUID"):
        broker.send(message)
    assert size_of(broker) == 0
