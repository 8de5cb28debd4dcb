"""Dead letters: what they keep, and what an operator does with them."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Filter, Replay, reprocess_dead_letters
from service.broker.keys import Keys
from service.broker.outcome import Crashed, Dead, Failure, Reason, RetryLater, Succeeded
from service.broker.settlement import settlement_of
from service.errors import InvalidRequest, PayloadError, UnknownJobType
from service.job import Job
from service.payload import PayloadVersions
from service.state.snapshot import Snapshot
from tests.protocol.test_worker import end_of
from tests.servers import eventually

StartWorker = Callable[..., Worker]
FAILURE = Failure("ValueError", "nö", "Traceback ...")


@pytest.fixture
def letters(broker: RedisBroker) -> DeadLetters:
    return DeadLetters(broker)


def die(
    broker: RedisBroker,
    queue: str = "email",
    failure: Failure = FAILURE,
    reason: Reason = Reason.FAILED,
    **payload: Any,
) -> Message:
    """Send a message and let it die."""
    message: Message = Message(queue_name=queue, actor_name="t.act", args=(), kwargs=payload, options={})
    broker.send(message)
    settle_next(broker, queue, Dead(failure, reason))
    time.sleep(0.002)  # no two in one millisecond
    return message


def settle_next(broker: RedisBroker, queue: str, outcome: Any) -> None:
    [delivery] = broker.fetch(queue, 1)[0]
    delivery.outcome = outcome(delivery) if callable(outcome) else outcome
    broker.settle(queue, [settlement_of(delivery)])


def the_letter(letters: DeadLetters, message: Message) -> Any:
    letter = letters.get(message.message_id)
    assert letter is not None
    return letter


def live(broker: RedisBroker, message: Message) -> dict[str, str]:
    record = broker.find_record(message.message_id)
    assert record is not None
    return record


@pytest.fixture(autouse=True)
def _actor(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name="email", priority=5, max_deliveries=3)
    def act(n: int = 0, word: str = "") -> None: ...


def test_a_dead_letter_keeps_all_that_is_known_of_the_job(broker: RedisBroker, letters: DeadLetters) -> None:
    before = time.time()
    message: Message = Message("email", "t.act", (), {"n": 7}, {"priority": 2})
    broker.send(message)
    settle_next(broker, "email", lambda each: RetryLater(each.copy_for_retry("trace"), 0, Failure("OSError", "1", "t")))
    settle_next(broker, "email", Crashed(Failure("crashed", "signal 9", "")))
    settle_next(broker, "email", Dead(FAILURE, Reason.TIMED_OUT))
    letter = the_letter(letters, message)
    shown = json.loads(json.dumps(letter.to_dict()))
    times = [
        shown.pop("failed_at"),
        *(attempt.pop(name) for attempt in shown["attempts"] for name in ("started_at", "ended_at")),
    ]
    for text in times:
        at = datetime.fromisoformat(text)
        assert at.tzinfo is not None
        assert before - 1 < at.timestamp() < time.time() + 1
    assert shown == {
        "job_id": message.message_id,
        "function": "t.act",
        "payload": {"args": [], "kwargs": {"n": 7}},
        "error": {"type": "ValueError", "message": "nö", "traceback": "Traceback ..."},
        "attempts": [
            {"attempt": 1, "worker": broker.worker_id, "error": {"type": "OSError", "message": "1"}},
            {"attempt": 2, "worker": broker.worker_id, "error": {"type": "crashed", "message": "signal 9"}},
            {"attempt": 2, "worker": broker.worker_id, "error": {"type": "ValueError", "message": "nö"}},
        ],
        "replays": [],
        "original_queue": "email",
        "reason": "timed-out",
    }
    assert letter.priority == 2


def test_the_log_of_a_job_that_ends_well_goes_with_it(broker: RedisBroker) -> None:
    broker.send(Message("email", "t.act", (), {}, {}))
    settle_next(broker, "email", lambda each: RetryLater(each.copy_for_retry("trace"), 0, FAILURE))
    keys = Keys(broker.namespace, "email")
    assert broker.client.exists(keys.attempts)
    settle_next(broker, "email", Succeeded("1"))
    assert not broker.client.exists(keys.attempts, keys.dead_letters)


def test_a_log_is_bounded_and_keeps_the_first_and_the_newest(broker: RedisBroker, letters: DeadLetters) -> None:
    message: Message = Message("email", "t.act", (), {}, {})
    broker.send(message)
    long = Failure("ValueError", "é" * 100_000, "")
    for _ in range(40):
        settle_next(broker, "email", lambda each: RetryLater(each.copy_for_retry("trace"), 0, long))
    assert broker.client.hstrlen(Keys(broker.namespace, "email").attempts, message.message_id) <= 16384
    settle_next(broker, "email", Dead(FAILURE))
    numbers = [attempt["attempt"] for attempt in the_letter(letters, message).attempts]
    assert numbers[0] == 1
    assert numbers[1:] == list(range(43 - len(numbers), 42))
    assert len(numbers) > 3


def test_a_message_that_nobody_can_read_is_shown_as_bytes(broker: RedisBroker, letters: DeadLetters) -> None:
    keys = Keys(broker.namespace, "email")
    entries = [str(uuid.uuid4()).encode(), b"\xff odd", str(uuid.uuid4()).encode() + b"~3"]
    for entry in entries:
        broker.client.hset(keys.messages, entry, b"\xff{not ours")
        broker.client.zadd(keys.ready, {entry: 0})
    assert broker.fetch("email", 10)[0] == []
    page = letters.page()
    assert {letter.entry for letter in page.letters} == set(entries)
    for letter in page.letters:
        assert (letter.payload, letter.reason, letter.priority) == (None, Reason.INVALID, None)
        assert json.loads(json.dumps(letter.to_dict()))["raw_base64"] == "/3tub3Qgb3Vycw=="
        assert letters.replay(letter, by="ada") is Replay.FOREIGN
        assert letters.delete(letter, by="ada")
    assert letters.page().letters == []


def test_a_replay_is_a_new_life_in_the_old_place(broker: RedisBroker, letters: DeadLetters) -> None:
    message: Message = Message("email", "t.act", (), {"n": 1}, {"priority": 2, "max_age": 3_600_000})
    old = message.copy(message_timestamp=1000)
    broker.send(old)
    settle_next(broker, "email", lambda each: RetryLater(each.copy_for_retry("trace"), 0, FAILURE))
    settle_next(broker, "email", Dead(FAILURE))
    behind: Message = Message("email", "t.act", (), {}, {"priority": 2})
    broker.send(behind)
    assert letters.replay(the_letter(letters, message), by="ada", why="it is mended") is Replay.DONE
    assert (live(broker, message)["state"], live(broker, message)["attempt"]) == ("pending", "0")
    assert letters.get(message.message_id) is None
    [first, second] = broker.fetch("email", 2)[0]
    assert [first.message_id, second.message_id] == [message.message_id, behind.message_id]
    assert (first.attempt, first.lease.lapses, first.kwargs) == (1, 0, {"n": 1})
    assert abs(first.options.pop("replayed_ms") / 1000 - time.time()) < 60
    assert first.options == {"priority": 2, "max_age": 3_600_000}
    assert abs(first.message_timestamp / 1000 - time.time()) < 60, "its age counts anew"
    first.outcome = Dead(FAILURE)
    broker.settle("email", [settlement_of(first)])
    again = the_letter(letters, message)
    assert [attempt["attempt"] for attempt in again.attempts] == [1, 2, 1]
    [replay] = again.replays
    assert (replay["by"], replay["why"]) == ("ada", "it is mended")
    assert datetime.fromisoformat(replay["replayed_at"]).tzinfo == UTC


def test_a_job_with_an_idempotency_key_is_read_and_replayed_like_any_other(
    broker: RedisBroker, letters: DeadLetters
) -> None:
    message: Message = Message("email", "t.act", (), {"n": 1}, {"idempotency_key": "receipt:ä", "priority": 2})
    broker.send(message)
    settle_next(broker, "email", Dead(FAILURE))
    letter = the_letter(letters, message)
    assert (letter.payload, letter.priority) == ({"args": [], "kwargs": {"n": 1}}, 2)
    assert letters.replay(letter, by="ada") is Replay.DONE
    [delivery] = broker.fetch("email", 1)[0]
    assert (delivery.kwargs, delivery.lease.key) == ({"n": 1}, "receipt:ä")


def test_a_replay_with_a_delay_waits(broker: RedisBroker, letters: DeadLetters) -> None:
    message = die(broker)
    assert letters.replay(the_letter(letters, message), by="ada", delay_ms=200) is Replay.DONE
    assert live(broker, message)["state"] == "scheduled"
    assert broker.fetch("email", 1)[0] == []
    time.sleep(0.25)
    assert len(broker.fetch("email", 1)[0]) == 1


def test_a_request_that_is_repeated_replays_once(broker: RedisBroker, letters: DeadLetters) -> None:
    message = die(broker)
    letter = the_letter(letters, message)
    assert letters.replay(letter, by="ada", request="r1") is Replay.DONE
    assert letters.replay(letter, by="ada", request="r1") is Replay.DONE_BEFORE
    assert letters.replay(letter, by="bob", request="r2") is Replay.GONE
    settle_next(broker, "email", Dead(FAILURE))
    again = the_letter(letters, message)
    assert letters.replay(again, by="ada", request="r1") is Replay.DONE_BEFORE, "it has died again since"
    assert letters.replay(letter, by="bob", request="r3") is Replay.GONE, "that was another death"
    assert letters.replay(again, by="bob", request="r3") is Replay.DONE


def test_a_job_that_was_sent_again_is_not_replayed_beside_itself(broker: RedisBroker, letters: DeadLetters) -> None:
    message = die(broker)
    broker.send(message)
    assert letters.replay(the_letter(letters, message), by="ada") is Replay.ON_ITS_QUEUE
    assert letters.replay_many(by="ada").skipped == 1
    settle_next(broker, "email", Succeeded("1"))
    assert letters.replay(the_letter(letters, message), by="ada") is Replay.DONE


def test_of_two_operators_one_replays(broker: RedisBroker, letters: DeadLetters) -> None:
    messages = [die(broker) for _ in range(20)]
    reports: list[int] = []

    def operate() -> None:
        reports.append(letters.replay_many(by="somebody").replayed)

    threads = [threading.Thread(target=operate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(reports) == 20
    assert sorted(each.message_id for each in broker.fetch("email", 100)[0]) == sorted(m.message_id for m in messages)


def test_an_edited_payload_is_checked_and_the_difference_is_kept(broker: RedisBroker, letters: DeadLetters) -> None:
    @dramatiq.actor(broker=broker, actor_class=Job, actor_name="t.job", queue_name="email")
    def typed(n: int, word: str = "x") -> None: ...

    broker.send(typed.message(n=1, word="old"))
    settle_next(broker, "email", Dead(FAILURE))
    [letter] = letters.page().letters
    with pytest.raises(PayloadError, match="n: "):
        letters.replay(letter, by="ada", payload={"n": "many"})
    with pytest.raises(PayloadError, match="colour"):
        letters.replay(letter, by="ada", payload={"n": 1, "colour": "red"})
    with pytest.raises(PayloadError, match="an object"):
        letters.replay(letter, by="ada", payload=[1])
    with pytest.raises(PayloadError, match="the limit is"):
        letters.replay(letter, by="ada", payload={"n": 1, "word": "x" * 9_000_000})
    assert letters.replay(letter, by="ada", why="typo", payload={"n": 2, "word": "old"}) is Replay.DONE
    [delivery] = broker.fetch("email", 1)[0]
    assert delivery.kwargs == {"n": 2, "word": "old"}
    delivery.outcome = Dead(FAILURE)
    broker.settle("email", [settlement_of(delivery)])
    [replay] = letters.page().letters[0].replays
    assert (replay["by"], replay["why"], replay["changes"]) == ("ada", "typo", {"n": {"from": "1", "to": "2"}})


def test_an_edited_payload_has_the_version_and_the_key_of_a_new_one(broker: RedisBroker, letters: DeadLetters) -> None:
    def rename(old: dict[str, Any]) -> dict[str, Any]:
        return {"name": old["who"]}

    versions = PayloadVersions("t.job", 2, {1: rename})

    @dramatiq.actor(
        broker=broker,
        actor_class=Job,
        actor_name="t.job",
        queue_name="email",
        payload_versions=versions,
        idempotency_key="hello:{name}",
    )
    def typed(name: str | None = None) -> None: ...

    def replayed(message: Message, payload: dict[str, Any]) -> tuple[Any, ...]:
        broker.send(message)
        settle_next(broker, "email", Dead(FAILURE))
        assert letters.replay(the_letter(letters, message), by="ada", payload=payload) is Replay.DONE
        [delivery] = broker.fetch("email", 1)[0]
        delivery.outcome = Succeeded("1")
        broker.settle("email", [settlement_of(delivery)])
        options = delivery.options
        return delivery.kwargs, options.get("payload_version"), delivery.lease.key, options.get("idempotency_key")

    old: Message = Message("email", "t.job", (), {"who": "bob"}, {"idempotency_key": "hello:bob"})
    assert replayed(old, {"name": "ada"}) == ({"name": "ada"}, 2, "hello:ada", "hello:ada")
    assert replayed(typed.message("bob"), {"name": None})[1:] == (2, "", None)
    named = typed.message_with_options(args=("bob",), idempotency_key="mine")
    assert replayed(named, {"name": "ada"})[1:] == (2, "mine", "mine"), "its sender has named it"


def test_the_payload_of_a_plain_actor_is_checked_by_its_function(broker: RedisBroker, letters: DeadLetters) -> None:
    message = die(broker, n=1)
    letter = the_letter(letters, message)
    for wrong in ({"m": 1}, {"n": float("nan")}, 7):
        with pytest.raises(PayloadError):
            letters.replay(letter, by="ada", payload=wrong)
    assert letters.replay(letter, by="ada", payload={"n": 3}) is Replay.DONE
    assert broker.fetch("email", 1)[0][0].kwargs == {"n": 3}
    odd: Message = Message("email", "t.gone", (), {}, {})
    broker.send(odd)
    [delivery] = list(broker.wire.fetch("email", 5, lease_ms=1000, wakeable_ms=0).messages)
    broker.settle("email", [settlement_of(_delivery(odd, delivery[0]))])
    with pytest.raises(UnknownJobType):
        letters.replay(the_letter(letters, odd), by="ada", payload={})


def _delivery(message: Message, lease: Any) -> Any:
    from service.broker.delivery import Delivery

    delivery = Delivery(message, lease)
    delivery.outcome = Dead(FAILURE, Reason.UNKNOWN_ACTOR)
    return delivery


def test_pages_go_over_all_queues_by_the_time_of_death(broker: RedisBroker, letters: DeadLetters) -> None:
    messages = [die(broker, queue) for queue in ("email", "ai", "email", "media", "ai", "email", "ai")]
    seen: list[str] = []
    cursor = None
    while True:
        page = letters.page(cursor=cursor, limit=2)
        assert len(page.letters) <= 2
        seen += [letter.job_id for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            break
        die(broker, n=99)  # newer than what was shown: it does not shift what follows
    assert seen == [message.message_id for message in reversed(messages)]
    with pytest.raises(InvalidRequest, match="cursor"):
        letters.page(cursor="x")


def test_many_deaths_in_one_moment_are_each_shown_once(broker: RedisBroker, letters: DeadLetters) -> None:
    messages = [die(broker, n=n) for n in range(250)]
    broker.client.zadd(Keys(broker.namespace, "email").dead, {message.message_id: 1000 for message in messages})
    seen: list[str] = []
    page = letters.page(limit=70)
    while True:
        seen += [letter.job_id for letter in page.letters]
        if page.cursor is None:
            break
        page = letters.page(limit=70, cursor=page.cursor)
    assert sorted(seen) == sorted(message.message_id for message in messages)


def test_a_filter_means_what_fits_all_of_it(broker: RedisBroker, letters: DeadLetters) -> None:
    plain = die(broker)
    other = die(broker, "ai", reason=Reason.TIMED_OUT)
    key = die(broker, failure=Failure("KeyError", "x", ""))
    moment = datetime.fromtimestamp(the_letter(letters, key).died_ms / 1000, UTC)

    def found(**fields: Any) -> list[str]:
        return [letter.job_id for letter in letters.page(Filter(**fields)).letters]

    assert found(queue="ai") == [other.message_id]
    assert found(reason=Reason.TIMED_OUT) == [other.message_id]
    assert found(queue="email", error_type="ValueError") == [plain.message_id]
    assert found(function="t.act", error_type="KeyError") == [key.message_id]
    assert found(function="other") == []
    dotted = die(broker, failure=Failure("smtplib.SMTPDataError", "x", ""))
    assert found(error_type="SMTPDataError") == found(error_type="smtplib.SMTPDataError") == [dotted.message_id]
    assert found(error_type="smtplib") == found(error_type="") == []
    assert key.message_id in found(since=moment)
    assert plain.message_id in found(until=moment)
    assert found(since=moment.replace(year=moment.year + 1)) == []


def test_a_bulk_replay_counts_stops_and_keeps_its_limit_when_repeated(
    broker: RedisBroker, letters: DeadLetters
) -> None:
    messages = [die(broker, n=n) for n in range(5)]
    die(broker, "ai")
    report = letters.replay_many(Filter(queue="email"), by="ada", dry_run=True)
    assert (report.replayed, report.counts) == (5, {("email", "t.act", "failed"): 5})
    assert len(letters.page().letters) == 6
    stop = threading.Event()
    stop.set()
    report = letters.replay_many(by="ada", stop=stop)
    assert (report.replayed, report.stopped) == (0, True)
    for _ in range(3):
        assert letters.replay_many(Filter(queue="email"), by="ada", limit=2, request="r").replayed == 2
    fetched = [delivery.message_id for delivery in broker.fetch("email", 10)[0]]
    assert fetched == [message.message_id for message in messages[:2]], "the oldest first"
    started = time.monotonic()
    assert letters.replay_many(Filter(queue="email"), by="ada", per_second=20).replayed == 3
    assert time.monotonic() - started > 0.1


def test_ten_of_all_queues_are_reprocessed(
    broker: RedisBroker, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.broker._configured", lambda: broker)
    assert reprocess_dead_letters(limit=10) == 0
    for number in range(12):
        die(broker, ["email", "ai", "media"][number % 3])
    assert reprocess_dead_letters(limit=10) == 10
    assert len(letters.page().letters) == 2
    assert reprocess_dead_letters() == 2


def test_a_replayed_job_succeeds_under_its_id(
    broker: RedisBroker, letters: DeadLetters, start_worker: StartWorker
) -> None:
    mended = threading.Event()

    @dramatiq.actor(broker=broker, max_retries=0)
    def act() -> str:
        if not mended.is_set():
            raise OSError("down")
        return "done"

    start_worker()
    message = act.send()
    eventually(lambda: letters.get(message.message_id))
    mended.set()
    assert letters.replay(the_letter(letters, message), by="ada") is Replay.DONE
    eventually(lambda: live(broker, message)["state"] == "succeeded")
    assert end_of(broker, message).result == "done"
    assert Snapshot.from_event(live(broker, message)).attempt == 1
