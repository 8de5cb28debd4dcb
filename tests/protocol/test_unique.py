"""Unique jobs on a real server: who is refused, and that no lock outlives its job."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.keys import Keys
from service.broker.outcome import Dead, Failure, Outcome, RetryLater, Succeeded
from service.broker.settlement import settlement_of
from service.errors import DeclarationError, JobExists
from service.job import Unique, job
from tests.servers import eventually

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


def declared(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, unique: Unique, **options: Any) -> Any:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.chosen", queue=QUEUE, unique=unique, **options)
    def act(*, account: str, page: int = 0) -> None: ...

    return act


def places(broker: RedisBroker, message: Message[Any]) -> dict[str, float]:
    """Where a message waits, with its score there."""
    keys = Keys(broker.namespace, QUEUE)
    found = {name: broker.client.zscore(getattr(keys, name), message.message_id) for name in ("ready", "delayed")}
    return {name: score for name, score in found.items() if score is not None}


def test_a_send_may_take_the_place_of_a_waiting_job_which_ends_as_cancelled(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="replace"))
    first, other = act.send(account="a"), act.send(account="b")
    place = places(broker, first)
    second = act.send(account="a", page=2)
    assert second.options["unique_met"] == first.message_id
    assert (places(broker, first), places(broker, second)) == ({}, place)
    record = broker.find_record(first.message_id)
    assert record is not None
    assert (record["state"], record["attempt"]) == ("cancelled", "0")
    assert second.message_id in record["error"]
    deliveries = broker.fetch(QUEUE, 10)[0]
    assert [(each.message_id, each.kwargs["page"]) for each in deliveries] == [
        (second.message_id, 2),
        (other.message_id, 0),
    ]
    assert_refused(lambda: act.send(account="a"), by=second)  # it runs, and is never replaced
    third = act.send(account="c")
    delayed = act.send_with_options(kwargs={"account": "c"}, delay=60_000)
    assert (places(broker, third), list(places(broker, delayed))) == ({}, ["delayed"])


def test_a_replaced_job_leaves_no_trace_of_its_retries_and_lets_those_behind_its_key_go_on(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="replace"), idempotency_key="once:{account}")
    first = act.send(account="a")
    [delivery] = broker.fetch(QUEUE, 1)[0]
    broker.keep_checkpoint(delivery.lease, "1")
    behind = act.send_with_options(kwargs={"account": "a"}, unique_key=None)
    assert broker.fetch(QUEUE, 1)[0] == []
    delivery.outcome = RetryLater(first, 60_000, Failure("ValueError", "no", ""))
    broker.settle(QUEUE, [settlement_of(delivery)])
    second = act.send_with_options(kwargs={"account": "a"}, delay=60_000)
    assert second.options["unique_met"] == first.message_id
    keys = Keys(broker.namespace, QUEUE)
    for name in ("attempts", "checkpoints", "lapses"):
        assert not broker.client.hexists(getattr(keys, name), first.message_id)
    assert [each.message_id for each in broker.fetch(QUEUE, 10)[0]] == [behind.message_id]


def test_what_waits_for_its_key_is_replaced_too(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="replace"), idempotency_key="once:{account}")
    holder = act.send_with_options(kwargs={"account": "a"}, unique_key=None)
    [delivery] = broker.fetch(QUEUE, 1)[0]
    first = act.send(account="a")
    assert broker.fetch(QUEUE, 1)[0] == []
    assert (broker.find_record(first.message_id) or {})["state"] == "waiting"
    second = act.send(account="a")
    assert second.options["unique_met"] == first.message_id
    assert broker.fetch(QUEUE, 1)[0] == []
    delivery.outcome = Dead(Failure("ValueError", "no", ""))
    broker.settle(QUEUE, [settlement_of(delivery)])
    assert [each.message_id for each in broker.fetch(QUEUE, 10)[0]] == [second.message_id]
    assert (broker.find_record(holder.message_id) or {})["state"] == "dead"


def test_a_send_may_move_the_due_time_of_a_waiting_job(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="reschedule"))
    first = act.send_with_options(kwargs={"account": "a", "page": 1}, delay=1_000)
    due = places(broker, first)["delayed"]
    second = act.send_with_options(kwargs={"account": "a", "page": 2}, delay=60_000)
    assert (second.message_id, second.options["unique_met"]) == (first.message_id, first.message_id)
    assert places(broker, first)["delayed"] > due + 50_000
    assert broker.wire.backlog(QUEUE) == 1
    assert act.send(account="a").message_id == first.message_id
    assert (broker.find_record(first.message_id) or {})["state"] == "pending"
    [delivery] = broker.fetch(QUEUE, 10)[0]
    assert (delivery.message_id, delivery.kwargs["page"]) == (first.message_id, 1)
    assert_refused(lambda: act.send_with_options(kwargs={"account": "a"}, delay=1000), by=first)


def test_a_repeated_send_that_moved_a_job_moves_it_once_and_names_it_again(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="reschedule"))
    first = act.send_with_options(kwargs={"account": "a"}, delay=1_000)
    rows, number = [broker.row(act.message(account="a"), 60_000)], broker.producer.next_send()
    answers = [broker.send_rows(QUEUE, rows, number)]
    due = places(broker, first)
    answers.append(broker.send_rows(QUEUE, rows, number))
    assert answers == [("rescheduled", first.message_id)] * 2
    assert places(broker, first) == due


def test_a_key_may_count_only_until_its_job_starts(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", states=("waiting",)))
    first = act.send(account="a")
    assert_refused(lambda: act.send(account="a"), by=first)
    broker.fetch(QUEUE, 1)
    second = act.send(account="a")
    assert_refused(lambda: act.send(account="a"), by=second)


def test_a_key_may_count_after_its_job_has_ended_until_the_window_is_over(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique = Unique("{account}", window=2, states=("waiting", "running", "ended"), on_conflict="replace")
    act = declared(broker, monkeypatch, unique)
    first = act.send(account="a")
    end(broker, Succeeded("1"))
    for account in map(str, range(20)):  # none of these sweeps it away
        act.send(account=account)
    assert_refused(lambda: act.send(account="a"), by=first)
    report = [act.message(account="a")]
    eventually(lambda: broker.send_many(report).stored == report, 10)


def test_a_job_that_has_ended_keeps_its_key_only_where_it_was_sent_to_do_so(broker: RedisBroker, act: Any) -> None:
    act.send(account="a")
    end(broker, Succeeded("1"))
    act.options |= {"unique_states": ("waiting", "ended"), "unique_window": 60.0}  # the next release
    kept = act.send(account="a")
    end(broker, Succeeded("1"))
    assert_refused(lambda: act.send(account="a"), kept)


def test_a_batch_reports_the_jobs_that_its_messages_have_met(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="replace"))
    messages = [act.message(account="a", page=page) for page in range(3)]
    report = broker.send_many(messages)
    assert report.met == {
        messages[1].message_id: ("replaced", messages[0].message_id),
        messages[2].message_id: ("replaced", messages[1].message_id),
    }
    assert [each.message_id for each in broker.fetch(QUEUE, 10)[0]] == [messages[2].message_id]


def test_of_concurrent_sends_that_replace_one_is_left(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    act = declared(broker, monkeypatch, Unique("{account}", on_conflict="replace"))
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda page: act.send(account="a", page=page), range(80)))
    assert broker.wire.backlog(QUEUE) == 1
    [left] = broker.fetch(QUEUE, 10)[0]
    states = [
        (broker.find_record(each.message_id) or {})["state"] for each in sent if each.message_id != left.message_id
    ]
    assert states == ["cancelled"] * 79
    assert len({each.options.get("unique_met") for each in sent}) == 80, "each met another, and the first none"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_conflict": "drop"}, "keep, replace, reschedule"),
        ({"states": ("running",)}, "must be waiting"),
        ({"states": "waiting"}, "must be waiting"),
        ({"states": ("waiting", "ended")}, "need a window"),
    ],
    ids=["conflict", "no waiting", "text", "no window"],
)
def test_choices_that_can_not_work_are_refused(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, options: Any, problem: str
) -> None:
    with pytest.raises(DeclarationError, match=problem):
        declared(broker, monkeypatch, Unique("{account}", **options))


def died(broker: RedisBroker) -> None:
    end(broker, Dead(Failure("ValueError", "no", "")))


def test_a_replayed_dead_letter_takes_its_key_again(broker: RedisBroker, act: Any) -> None:
    first = act.send(account="a")
    died(broker)
    letters = DeadLetters(broker)
    letter = letters.get(first.message_id)
    assert letter is not None
    assert letters.replay(letter, by="ada") is Replay.DONE
    assert_refused(lambda: act.send(account="a"), by=first)


def test_a_dead_letter_is_not_replayed_while_another_job_has_its_key(broker: RedisBroker, act: Any) -> None:
    first, other = act.send(account="a"), act.send(account="b")
    died(broker)
    died(broker)
    second = act.send(account="a")
    letters = DeadLetters(broker)
    letter = letters.get(first.message_id)
    assert letter is not None
    with pytest.raises(JobExists) as refusal:
        letters.replay(letter, by="ada")
    assert refusal.value.job_id == second.message_id
    report = letters.replay_many(by="ada")
    assert (report.replayed, report.skipped) == (1, 1)
    assert [each.job_id for each in letters.page().letters] == [first.message_id]
    with pytest.raises(JobExists):
        letters.replay(letter, by="ada", payload={"account": "b"})  # its key follows from the payload
    assert (broker.find_record(other.message_id) or {})["state"] == "pending"
    assert letters.replay(letter, by="ada", payload={"account": "c"}) is Replay.DONE
    assert_refused(lambda: act.send(account="c"), by=first)
