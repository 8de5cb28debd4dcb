"""Outcomes that a real server can't take: only these are left, and their neighbours are settled once."""

import logging

import dramatiq
import pytest

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.broker.keys import Keys
from service.broker.outcome import Failure, RetryLater
from service.broker.settlement import Settlement, settlement_of
from tests.brokers import broker_at
from tests.jobs import send, state_of
from tests.servers import RedisServer

QUEUE = "default"
KEYS = [None, "a key", None]
FAILURE = Failure("ValueError", "no", "")


@pytest.fixture(autouse=True)
def actor(broker: RedisBroker) -> None:
    dramatiq.actor(lambda number: None, actor_name="t.job", queue_name=QUEUE, broker=broker)


def fetched(broker: RedisBroker, count: int) -> list[Delivery]:
    deliveries = broker.fetch(QUEUE, count)[0]
    assert len(deliveries) == count
    return deliveries


def settled_by_the_thread(broker: RedisBroker, settlements: list[Settlement]) -> None:
    for settlement in settlements:
        broker.settler.add(settlement)
    broker.settler.start()
    assert broker.settler.close(10)


def test_an_outcome_that_the_script_can_not_read_is_left_alone(
    broker: RedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [send(broker, "t.job", number) for number in range(3)]
    retrying, wrong, done = fetched(broker, 3)
    retrying.outcome = RetryLater(messages[0], 60_000, FAILURE)
    broken = settlement_of(wrong)._replace(outcome="retry", data=b"no delay")
    with caplog.at_level(logging.ERROR):
        settled_by_the_thread(broker, [settlement_of(retrying), broken, settlement_of(done)])
    assert [state_of(broker, message) for message in messages] == ["retrying", "running", "succeeded"]
    record = broker.find_record(messages[0].message_id)
    assert record is not None
    assert record["attempt"] == "1", "counted once, though it was sent twice"
    [line] = [each for each in caplog.records if "can't be settled" in each.message]
    assert line.__dict__["job_id"] == messages[1].message_id
    assert [lease.entry for lease in broker.holdings[QUEUE].all()] == [], "it is renewed no more"


def test_an_outcome_that_meets_a_broken_key_is_left_alone(
    broker: RedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    actor = broker.get_actor("t.job")
    messages = [actor.message_with_options(args=(number,), idempotency_key=key) for number, key in enumerate(KEYS)]
    assert not broker.send_many(messages).failed
    settlements = [settlement_of(each) for each in fetched(broker, 3)]
    once = Keys(broker.namespace, QUEUE).once
    broker.client.delete(once)
    broker.client.set(once, "what somebody else has written")
    with caplog.at_level(logging.ERROR):
        settled_by_the_thread(broker, settlements)
    assert [state_of(broker, message) for message in messages] == ["succeeded", "running", "succeeded"]
    [line] = [each for each in caplog.records if "can't be settled" in each.message]
    assert line.__dict__["job_id"] == messages[1].message_id


def test_an_outcome_that_is_too_long_for_the_server_is_left_alone(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with broker_at(own_redis.url, monkeypatch) as broker:
        dramatiq.actor(lambda number: None, actor_name="t.job", queue_name=QUEUE, broker=broker)
        messages = [send(broker, "t.job", number) for number in range(3)]
        first, too_long, last = fetched(broker, 3)
        with own_redis.client() as client:
            client.config_set("proto-max-bulk-len", 1024 * 1024)
        # More than the buffers of the connection hold: the server has closed it before all is written.
        broken = settlement_of(too_long)._replace(outcome="dead", data=b"{}\n" + b"x" * 8 * 1024 * 1024)
        with caplog.at_level(logging.ERROR):
            settled_by_the_thread(broker, [settlement_of(first), broken, settlement_of(last)])
        assert [state_of(broker, message) for message in messages] == ["succeeded", "running", "succeeded"]
        [line] = [each for each in caplog.records if "can't be settled" in each.message]
        assert line.__dict__["job_id"] == messages[1].message_id
