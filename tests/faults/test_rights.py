"""A Redis user with only some rights: those in the docs are enough, and what is missing is named."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.server_check import problems_of
from service.errors import BrokerUnavailable
from service.settings import get_settings
from tests.brokers import broker_at
from tests.e2e.conftest import Service
from tests.servers import RedisServer, eventually

OPERATING = Path(__file__).parent.parent.parent / "docs" / "operating.md"


@pytest.fixture
def admin(own_redis: RedisServer, environment: dict[str, str]) -> Iterator[redis.Redis]:
    """Who grants rights. The user `callboard` has those of the docs."""
    [documented] = re.findall(r"^ACL SETUSER callboard .+$", OPERATING.read_text(), re.MULTILINE)
    rights = documented.replace("callboard:", f"{environment['CALLBOARD_NAMESPACE']}:")
    with own_redis.client() as admin:
        admin.execute_command(*rights.split())
        yield admin


@pytest.fixture
def url(own_redis: RedisServer, admin: redis.Redis) -> str:
    return f"redis://callboard:PASSWORD@127.0.0.1:{own_redis.port}/0"


@pytest.fixture
def broker(url: str, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """A broker of that user."""
    with broker_at(url, monkeypatch) as broker:
        broker.declare_queue("default")
        yield broker


def a_message() -> Message[Any]:
    return Message(queue_name="default", actor_name="t.act", args=(), kwargs={}, options={})


def grant(admin: redis.Redis, *rights: str) -> None:
    admin.execute_command("ACL", "SETUSER", "callboard", *rights)


def channels() -> str:
    return f"&{get_settings().namespace}:wake:*"


def test_the_rights_in_the_docs_are_enough(
    service: Service, url: str, database_url: str, admin: redis.Redis, broker: RedisBroker
) -> None:
    service.environment |= {"REDIS_URL": url, "DATABASE_URL": database_url}
    service.start_api()
    service.start_worker()
    service.start("scheduler", "callboard", "scheduler")
    eventually(lambda: service.is_ready("scheduler"), 30)
    jobs = [service.send("sample.note", word="hello"), service.send("sample.flaky", succeeds_at=2)]
    later = a_message()
    broker.send(later, delay_ms=100, once_within_seconds=10)
    assert [service.end_of(job)["status"] for job in jobs] == ["succeeded", "succeeded"]
    eventually(lambda: "left to others" in service.log("worker"))
    broker.release_unreceived("default")
    assert problems_of(broker.client, broker.namespace) == []
    assert admin.acl_log() == [], "nothing was refused"


@pytest.mark.parametrize("missing", ["resetchannels", "-publish"])
def test_a_send_of_a_user_who_may_not_call_workers_is_refused_and_names_the_right(
    broker: RedisBroker, admin: redis.Redis, missing: str
) -> None:
    broker.start()
    eventually(lambda: broker.wakeups.subscribed)
    assert broker.fetch("default", 1)[0] == [], "somebody is there to be called"
    grant(admin, missing)
    message = a_message()
    with pytest.raises(BrokerUnavailable, match=re.escape(f"+publish {channels()}")) as refused:
        broker.send(message)
    assert refused.value.may_be_stored is False
    assert broker.find_record(message.message_id) is None
    [(_, error)] = broker.send_many([message]).failed
    assert channels() in str(error)
    [problem] = problems_of(broker.client, broker.namespace)
    assert f"+publish {channels()}" in problem
    grant(admin, "+publish", channels())
    broker.send(message)


def test_a_send_that_is_refused_midway_says_that_it_may_be_stored(broker: RedisBroker, admin: redis.Redis) -> None:
    grant(admin, "-xadd")
    with pytest.raises(BrokerUnavailable) as refused:
        broker.send(a_message())
    assert refused.value.may_be_stored is True
    assert broker.wire.backlog("default") == 1


def test_a_worker_that_can_not_be_called_says_so_once_and_goes_on(
    broker: RedisBroker, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.broker.wakeups")
    grant(admin, "resetchannels")
    broker.start()
    eventually(lambda: caplog.messages)
    time.sleep(1.2)  # it has tried again
    [warning] = caplog.messages
    assert f"+subscribe {channels()}" in warning
    grant(admin, channels())
    eventually(lambda: broker.wakeups.subscribed)
    for _ in range(3):
        broker.send(a_message(), delay_ms=1)
    grant(admin, "resetchannels")  # which ends its subscription
    eventually(lambda: not broker.wakeups.subscribed)
    broker.client.zadd(f"{{{broker.namespace}:default}}:waiters", {"somebody": 0})
    time.sleep(0.6)
    assert len(broker.wire.fetch("default", 1, lease_ms=1000, wakeable_ms=0).messages) == 1, (
        "though others can't be called"
    )
    eventually(lambda: channels() in caplog.messages[-1])
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING", "WARNING"]


def test_a_subscription_that_an_outage_ends_is_told_once(
    broker: RedisBroker, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.broker.wakeups")
    broker.start()
    eventually(lambda: broker.wakeups.subscribed)
    own_redis.kill()
    eventually(lambda: not broker.wakeups.subscribed)
    time.sleep(1.2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
