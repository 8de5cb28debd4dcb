"""`send_many`: which messages are stored, and what is said of the others."""

import dramatiq
import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import BrokerUnavailable
from service.middleware import chain
from service.settings import load_settings
from tests.servers import RedisServer

QUEUE = "email"


def messages(count: int) -> list[Message]:
    return [Message(queue_name=QUEUE, actor_name="t.act", args=(n,), kwargs={}, options={}) for n in range(count)]


def stored_ids(broker: RedisBroker) -> list[str]:
    return [entry.decode() for entry in broker.client.zrange(Keys(broker.namespace, QUEUE).ready, 0, -1)]


def test_many_messages_are_stored_in_their_order_whatever_the_batches(broker: RedisBroker) -> None:
    sent = messages(1_234)
    report = broker.send_many(sent)
    assert report.failed == []
    assert report.stored == sent
    assert stored_ids(broker) == [message.message_id for message in sent]


def test_messages_that_can_not_be_sent_are_named_and_keep_no_other_back(broker: RedisBroker) -> None:
    sent = messages(700)
    no_json = Message(queue_name=QUEUE, actor_name="t.act", args=({1, 2},), kwargs={}, options={})
    no_uuid = Message(queue_name=QUEUE, actor_name="t.act", args=(), kwargs={}, options={}, message_id="mine")
    no_number = Message(queue_name=QUEUE, actor_name="t.act", args=(), kwargs={}, options={"max_retries": "three"})
    bad = [no_json, no_uuid, no_number]
    report = broker.send_many([bad[0], *sent[:600], bad[1], *sent[600:], bad[2]])
    assert report.stored == sent
    assert [message for message, _ in report.failed] == bad
    reasons = [str(error) for _, error in report.failed]
    assert "set is not JSON serializable" in reasons[0]
    assert "UUID" in reasons[1]
    assert "max_retries='three'" in reasons[2]
    assert stored_ids(broker) == [message.message_id for message in sent]


def test_nothing_is_stored_where_redis_is_away_and_every_message_is_named(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", own_redis.url)
    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    own_redis.kill()
    sent = messages(1_700)
    report = broker.send_many(sent)
    assert report.stored == []
    assert [message for message, _ in report.failed] == sent
    errors = [error for _, error in report.failed]
    assert all(isinstance(error, BrokerUnavailable) and not error.may_be_stored for error in errors)
    own_redis.start()
    assert broker.send_many(sent).stored == sent


def test_a_connection_that_broke_is_not_noticed_and_stores_nothing_twice(broker: RedisBroker) -> None:
    sent = messages(2_600)

    class CutsTheWire(dramatiq.Middleware):
        """Closes all connections of clients while the third batch is prepared and the second is under way."""

        seen = 0

        def before_enqueue(self, broker: RedisBroker, message: Message, delay: int | None) -> None:
            self.seen += 1
            if self.seen == 1_200:
                with broker.client.client() as other:
                    other.client_kill_filter(_type="normal", skipme=True)

    broker.add_middleware(CutsTheWire())
    report = broker.send_many(sent)
    assert report.failed == []
    assert sorted(stored_ids(broker)) == sorted(message.message_id for message in sent)
    assert broker.client.hlen(Keys(broker.namespace, QUEUE).messages) == 2_600


def test_a_fresh_server_that_is_slow_to_ask_for_the_script_stores_all(broker: RedisBroker) -> None:
    sent = messages(1_200)
    broker.client.script_flush()
    broker.client.client_pause(400)  # longer than a broken connection is repeated for
    report = broker.send_many(sent)
    assert report.failed == []
    assert stored_ids(broker) == [message.message_id for message in sent]
