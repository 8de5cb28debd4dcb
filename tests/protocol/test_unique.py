"""Unique jobs on a real server: who is refused, and that no lock outlives its job."""

import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Succeeded
from service.broker.settlement import settlement_of
from service.errors import DeclarationError, JobExists
from service.job import Unique, job

QUEUE = "default"


@pytest.fixture
def act(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.unique", queue=QUEUE, unique=Unique("sync:{account}"))
    def act(*, account: str | None = None, page: int = 0) -> None: ...

    return act


def end(broker: RedisBroker, outcome: Outcome) -> None:
    [delivery] = broker.fetch(QUEUE, 1)[0]
    delivery.outcome = outcome
    broker.settle(QUEUE, [settlement_of(delivery)])


def assert_refused(send: Callable[[], Message[Any]], by: Message[Any]) -> None:
    with pytest.raises(JobExists) as refusal:
        send()
    assert refusal.value.job_id == by.message_id
    assert (refusal.value.code, refusal.value.status, refusal.value.retryable) == ("job-exists", 409, False)


def test_a_send_is_refused_while_a_job_with_its_key_has_not_ended(broker: RedisBroker, act: Any) -> None:
    first = act.send(account="a")
    assert_refused(lambda: act.send(account="a", page=2), by=first)
    for other in ("b", None, None):
        act.send(account=other)
    assert broker.wire.backlog(QUEUE) == 4
    end(broker, RetryLater(first, 60_000, Failure("ValueError", "no", "")))
    assert_refused(lambda: act.send(account="a"), by=first)  # it waits for its retry
    assert_refused(lambda: act.send_with_options(kwargs={"account": "a"}, delay=1000), by=first)


@pytest.mark.parametrize("outcome", [Succeeded("1"), Dead(Failure("ValueError", "no", ""))], ids=["done", "dead"])
def test_the_key_is_free_when_its_job_has_ended(broker: RedisBroker, act: Any, outcome: Outcome) -> None:
    act.send(account="a")
    end(broker, outcome)
    second = act.send(account="a")
    assert_refused(lambda: act.send(account="a"), by=second)


def test_the_key_is_free_when_its_job_is_removed(broker: RedisBroker, act: Any) -> None:
    first = act.send(account="a")
    keys = Keys(broker.namespace, QUEUE)
    broker.client.hdel(keys.messages, first.message_id)
    broker.client.zrem(keys.ready, first.message_id)
    act.send(account="a")
    broker.flush(QUEUE)
    assert not broker.client.exists(keys.unique)
    act.send(account="a")


def test_a_worker_that_died_with_the_job_does_not_free_its_key(
    broker: RedisBroker, act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_lease_seconds", lambda queue: 0.3)
    first = act.send(account="a")
    broker.fetch(QUEUE, 1)
    time.sleep(0.4)
    assert_refused(lambda: act.send(account="a"), by=first)
    end(broker, Succeeded("1"))
    act.send(account="a")


def test_a_window_lets_others_in_while_the_job_is_still_there(broker: RedisBroker, monkeypatch: Any) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.window", queue=QUEUE, unique=Unique(lambda payload: payload["account"], window=0.5))
    def act(*, account: str) -> None: ...

    first = act.send(account="a")
    assert_refused(lambda: act.send(account="a"), by=first)
    time.sleep(0.6)
    second = act.send(account="a")
    assert_refused(lambda: act.send(account="a"), by=second)


def test_the_same_send_is_not_refused_by_itself(broker: RedisBroker, act: Any) -> None:
    message = act.message(account="a")
    rows, number = [broker.row(message, None)], broker.producer.next_send()
    assert broker.send_rows(QUEUE, rows, number)
    assert broker.send_rows(QUEUE, rows, number), "the client's own repetition"
    assert broker.wire.backlog(QUEUE) == 1
    other, number = act.message(account="a"), broker.producer.next_send()
    for _ in range(2):
        with pytest.raises(JobExists, match=message.message_id):
            broker.send_rows(QUEUE, [broker.row(other, None)], number)


def test_a_batch_says_which_were_refused_and_keeps_its_order(broker: RedisBroker, act: Any) -> None:
    plain = dramatiq.actor(lambda: None, actor_name="t.plain", queue_name=QUEUE, broker=broker)
    messages = [act.message(account="a"), plain.message(), act.message(account="a"), plain.message()]
    messages += [act.message(account="b"), act.message(account="b")]
    report = broker.send_many(messages)
    refused = {id(message): error for message, error in report.failed}
    assert [id(message) in refused for message in messages] == [False, False, True, False, False, True]
    assert [error.job_id for error in refused.values()] == [messages[0].message_id, messages[4].message_id]  # type: ignore[attr-defined]
    fetched = [delivery.message_id for delivery in broker.fetch(QUEUE, 10)[0]]
    assert fetched == [message.message_id for message in report.stored]


def test_keys_of_jobs_that_have_ended_do_not_pile_up(broker: RedisBroker, act: Any) -> None:
    for number in range(200):
        act.send(account=str(number))
        end(broker, Succeeded("1"))
    assert broker.client.hlen(Keys(broker.namespace, QUEUE).unique) < 10


@pytest.mark.parametrize("unique", [Unique("sync:{who}"), Unique("{account}", window="soon"), Unique(7)])  # type: ignore[arg-type]
def test_what_can_not_work_is_refused_at_import(broker: RedisBroker, monkeypatch: Any, unique: Unique) -> None:
    monkeypatch.setattr("service.job.broker", broker)
    with pytest.raises(DeclarationError, match=r"^t\.wrong: unique_"):

        @job(name="t.wrong", queue=QUEUE, unique=unique)
        def act(*, account: str) -> None: ...

    assert broker.known_types == []
