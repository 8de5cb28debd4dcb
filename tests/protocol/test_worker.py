"""What Dramatiq's worker does on our broker, with the whole chain around it."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.composition import group, pipeline
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker, events
from service.broker.keys import Keys
from service.errors import DeclarationError, Permanent
from service.job import Job
from service.middleware.context import current_job_or_none
from service.settings import Settings
from service.state.snapshot import Snapshot
from service.state.states import State, is_final
from tests.servers import eventually

StartWorker = Callable[..., Worker]


def find(broker: RedisBroker, message: Message[Any]) -> Snapshot:
    record = broker.find_record(message.message_id)
    assert record is not None
    return Snapshot.from_event(record)


def has_ended(broker: RedisBroker, message: Message[Any]) -> bool:
    """Whether it has come to its end; a later step of a pipeline is not even sent at first."""
    record = broker.find_record(message.message_id)
    return record is not None and is_final(Snapshot.from_event(record).state)


def end_of(broker: RedisBroker, message: Message[Any], timeout_seconds: float = 20) -> Snapshot:
    eventually(lambda: has_ended(broker, message), timeout_seconds)
    return find(broker, message)


def states_of(broker: RedisBroker, message: Message[Any]) -> list[str]:
    return states_of_all(broker, message.queue_name)[message.message_id]


def states_of_all(broker: RedisBroker, queue: str) -> dict[str, list[str]]:
    """The states that a queue's stream tells of each job, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for entry_id, fields in broker.client.xrange(Keys(broker.namespace, queue).events):
        texts = {key.decode(): value.decode() for key, value in fields.items()}
        for event in events.read(entry_id.decode(), texts, queue):
            found[event["job_id"]].append(event["state"])
    return found


def test_a_plain_actor_is_run_and_recorded(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def add(a: int, b: int) -> int:
        return a + b

    start_worker()
    message = add.send(2, 3)
    assert end_of(broker, message).result == 5
    assert states_of(broker, message) == ["pending", "running", "succeeded"]


def test_the_worker_gives_an_actor_what_it_declares(broker: RedisBroker, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    @dramatiq.actor(broker=broker, actor_class=Job)
    def take(*, data: bytes, flag: bool = True) -> str:
        seen.append((data, flag, current_job_or_none()))
        return "ok"

    start_worker()
    message = take.send(data=b"\x00\xff")
    end_of(broker, message)
    [(data, flag, context)] = seen
    assert (data, flag) == (b"\x00\xff", True)
    assert (context.job_id, context.actor, context.queue, context.attempt) == (message.message_id, "take", "default", 1)
    assert current_job_or_none() is None


def test_async_actors_run_and_know_their_job(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, actor_class=Job)
    async def who() -> str:
        context = current_job_or_none()
        assert context is not None
        return context.job_id

    start_worker()
    message = who.send()
    assert end_of(broker, message).result == message.message_id


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_async_job_that_exits_ends_itself_and_no_other(
    broker: RedisBroker, start_worker: StartWorker, error: BaseException
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    async def leave() -> None:
        raise error

    @dramatiq.actor(broker=broker)
    async def stay() -> str:
        return "here"

    start_worker()
    job = end_of(broker, leave.send())
    assert job.error is not None
    assert repr(error) in job.error["message"]
    assert end_of(broker, stay.send()).result == "here"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_job_that_exits_fails_and_its_thread_goes_on(
    broker: RedisBroker, start_worker: StartWorker, error: BaseException
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def leave() -> None:
        raise error

    @dramatiq.actor(broker=broker)
    def stay() -> str:
        return "here"

    start_worker(threads=1)
    assert end_of(broker, leave.send()).state is State.DEAD
    assert end_of(broker, stay.send()).result == "here"


def test_failures_are_retried_and_only_the_last_is_final(broker: RedisBroker, start_worker: StartWorker) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=10, max_backoff=50)
    def fail() -> None:
        context = current_job_or_none()
        assert context is not None
        attempts.append(context.attempt)
        raise ValueError("not now")

    start_worker()
    message = fail.send()
    job = end_of(broker, message)
    assert attempts == [1, 2, 3]
    assert (job.state, job.attempt) == (State.DEAD, 3)
    assert job.error is not None
    assert (job.error["type"], job.error["message"]) == ("ValueError", "not now")
    assert states_of(broker, message) == ["pending", *["running", "retrying"] * 2, "running", "dead"]


def test_a_success_after_a_failure_shows_no_error(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=10)
    def second_time_lucky() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionError("gone")

    start_worker()
    job = end_of(broker, second_time_lucky.send())
    assert (job.state, job.attempt, job.error) == (State.SUCCEEDED, 2, None)


def test_a_send_with_an_option_that_can_not_work_is_refused(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    for options in ({"max_retries": None}, {"min_backoff": "1"}, {"max_backoff": -1}):
        with pytest.raises(DeclarationError, match=next(iter(options))):
            work.send_with_options(**options)
    broker.join("default", timeout=1000)


def test_permanent_errors_are_not_retried(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def refuse() -> None:
        raise Permanent("never")

    start_worker()
    message = refuse.send()
    assert end_of(broker, message).attempt == 1
    assert states_of(broker, message) == ["pending", "running", "dead"]


def test_a_payload_that_does_not_fit_fails_for_good(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, actor_class=Job)
    def count(*, n: int) -> int:
        return n

    start_worker()
    message = Message(queue_name="default", actor_name="count", args=(), kwargs={"n": "many"}, options={})
    broker.enqueue(message)
    job = end_of(broker, message)
    assert job.error is not None
    assert "n: Input should be a valid integer" in job.error["message"]
    assert job.attempt == 1


def test_a_time_limit_interrupts_the_job(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, max_retries=0, time_limit=200)
    def spin() -> None:
        while True:
            time.sleep(0.01)

    start_worker()
    job = end_of(broker, spin.send())
    assert job.error is not None
    assert "TimeLimitExceeded" in job.error["type"]


def test_an_actor_that_is_unknown_here_is_left_to_others_for_a_while(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    broker.declare_queue("default")
    start_worker()
    message = Message(queue_name="default", actor_name="next.release", args=(), kwargs={}, options={})
    broker.enqueue(message)
    eventually(lambda: find(broker, message).state is State.SCHEDULED)

    @dramatiq.actor(broker=broker, actor_name="next.release")
    def known_now() -> str:
        return "done"

    job = end_of(broker, message)
    assert (job.result, job.attempt) == ("done", 1)


def test_an_unknown_actor_is_a_dead_letter_with_its_reason(
    broker: RedisBroker, start_worker: StartWorker, settings: Settings
) -> None:
    broker._settings = lambda: settings.model_copy(update={"unknown_actor_seconds": 0})
    broker.declare_queue("default")
    start_worker()
    message = Message(queue_name="default", actor_name="gone", args=(), kwargs={}, options={})
    broker.enqueue(message)
    job = end_of(broker, message)
    assert job.error is not None
    assert "ActorNotFound" in job.error["type"]


def test_an_alias_in_a_message_reaches_its_actor(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, actor_name="mail.send")
    def send() -> str:
        return "sent"

    broker.declare_alias("send-mail", send)
    start_worker()
    message = Message(queue_name="default", actor_name="send-mail", args=(), kwargs={}, options={})
    broker.enqueue(message)
    assert end_of(broker, message).result == "sent"


def test_a_delayed_job_is_scheduled_first_and_runs_when_due(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def later() -> None:
        return None

    start_worker()
    message = later.send_with_options(delay=400)
    assert find(broker, message).state is State.SCHEDULED
    job = end_of(broker, message)
    assert job.started_at is not None
    assert (job.started_at - job.created_at).total_seconds() >= 0.4
    assert states_of(broker, message) == ["scheduled", "running", "succeeded"]


def test_results_that_have_no_json_form_do_not_undo_a_success(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def odd() -> object:
        return {"nul": "a\x00b", "lock": threading.Lock(), "nan": float("nan")}

    start_worker()
    job = end_of(broker, odd.send())
    assert job.state is State.SUCCEEDED
    assert job.result["nul"] == "a\\u0000b"
    assert job.result["nan"] == "NaN"


def test_pipelines_and_groups_work_as_in_dramatiq(broker: RedisBroker, start_worker: StartWorker) -> None:
    results: list[int] = []

    @dramatiq.actor(broker=broker)
    def double(n: int) -> int:
        results.append(n * 2)
        return n * 2

    start_worker()
    pipeline([double.message(1), double.message(), double.message()], broker=broker).run()
    group([double.message(100), double.message(200)], broker=broker).run()
    eventually(lambda: sorted(results) == [2, 4, 8, 200, 400])


def test_join_waits_until_a_queue_is_empty(broker: RedisBroker, start_worker: StartWorker) -> None:
    done: list[int] = []

    @dramatiq.actor(broker=broker)
    def slow() -> None:
        time.sleep(0.05)
        done.append(1)

    start_worker()
    for _ in range(8):
        slow.send()
    broker.join("default", timeout=10_000)
    eventually(lambda: len(done) == 8)


class Gauge:
    """The most jobs that ran at the same time."""

    def __init__(self) -> None:
        self.running = self.peak = self.finished = 0
        self.lock = threading.Lock()

    def work(self, seconds: float) -> None:
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        time.sleep(seconds)
        with self.lock:
            self.running -= 1
            self.finished += 1


def test_each_queue_keeps_its_concurrency_in_a_worker_of_all_queues(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    gauges = {"high-priority": Gauge(), "ai": Gauge(), "reports": Gauge(), "default": Gauge()}

    @dramatiq.actor(broker=broker, queue_name="high-priority")
    def high() -> None:
        gauges["high-priority"].work(0.05)

    @dramatiq.actor(broker=broker, queue_name="ai")
    def ai() -> None:
        gauges["ai"].work(0.05)

    @dramatiq.actor(broker=broker, queue_name="reports")
    def reports() -> None:
        gauges["reports"].work(0.05)

    @dramatiq.actor(broker=broker)
    def default() -> None:
        gauges["default"].work(0.05)

    for actor in (high, ai, reports, default):
        for _ in range(20):
            actor.send()
    start_worker(threads=32)
    eventually(lambda: all(gauge.finished == 20 for gauge in gauges.values()), 40)
    assert {queue: gauge.peak for queue, gauge in gauges.items()} == {
        "high-priority": 2,
        "ai": 2,
        "reports": 5,
        "default": 10,
    }


def test_queues_of_long_jobs_leave_to_others_what_they_can_not_start(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    release = threading.Event()

    @dramatiq.actor(broker=broker, queue_name="reports")
    def report() -> None:
        release.wait(20)

    messages = [report.send() for _ in range(6)]
    start_worker(threads=2)
    try:
        eventually(lambda: sum(find(broker, message).state is State.RUNNING for message in messages) == 2)
        keys = Keys(broker.namespace, "reports")
        eventually(lambda: broker.client.zcard(keys.ready) == 4)
        time.sleep(0.5)
        assert broker.client.zcard(keys.ready) == 4
    finally:
        release.set()
    for message in messages:
        end_of(broker, message)


def test_a_queue_outside_of_the_table_is_refused(broker: RedisBroker) -> None:
    with pytest.raises(DeclarationError, match="Unknown queue 'emial'; known queues: email, default"):

        @dramatiq.actor(broker=broker, queue_name="emial")
        def lost() -> None: ...


def test_third_party_middleware_sees_the_life_of_a_message(broker: RedisBroker, start_worker: StartWorker) -> None:
    seen: list[str] = []

    class Spy(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            seen.append("before_enqueue")

        def before_process_message(self, broker: Any, message: Any) -> None:
            seen.append("before_process_message")

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            seen.append(f"after_process_message {result}")

        def after_ack(self, broker: Any, message: Any) -> None:
            seen.append("after_ack")

    @dramatiq.actor(broker=broker)
    def work() -> int:
        return 7

    broker.add_middleware(Spy())
    start_worker()
    work.send()
    eventually(lambda: "after_ack" in seen)
    assert seen == ["before_enqueue", "before_process_message", "after_process_message 7", "after_ack"]


def test_an_actor_may_ask_that_its_outcomes_are_settled_before_its_thread_goes_on(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker, settle_at_once=True)
    def careful() -> None: ...

    @dramatiq.actor(broker=broker)
    def looks(message_id: str) -> None:
        seen.append((broker.find_record(message_id) or {})["state"])

    for _ in range(20):
        looks.send(careful.send().message_id)
    start_worker(threads=1)
    eventually(lambda: len(seen) == 20)
    assert set(seen) == {"succeeded"}


@pytest.mark.parametrize("by_the_fetch", [True, False])
def test_a_fetch_reaches_the_threads_in_its_order_handed_over_whole_or_one_by_one(
    broker: RedisBroker, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, by_the_fetch: bool
) -> None:
    ran: list[int] = []

    @dramatiq.actor(broker=broker)
    def note(number: int) -> None:
        ran.append(number)

    if not by_the_fetch:
        monkeypatch.setattr(type(broker.life), "work_queue", property(lambda _: None, lambda *_: None), raising=False)
    for number in range(300):
        note.send(number)
    worker = start_worker(threads=1)
    eventually(lambda: len(ran) == 300)
    assert ran == list(range(300))
    worker.join()
    broker.join("default", timeout=10_000)


def test_a_message_of_higher_priority_is_before_others_of_its_fetch(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    ran: list[str] = []

    @dramatiq.actor(broker=broker, priority=5)
    def note(word: str) -> None:
        ran.append(word)

    for word, priority in (("last", 9), ("middle", 5), ("first", 0)):
        note.send_with_options(args=(word,), priority=priority)
    start_worker(threads=1)
    eventually(lambda: len(ran) == 3)
    assert ran == ["first", "middle", "last"]


def test_short_urgent_jobs_of_one_queue_keep_no_message_of_another_waiting_that_is_held(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    ran: list[str] = []

    @dramatiq.actor(broker=broker, queue_name="default", priority=0)
    def short() -> None:
        ran.append("short")
        time.sleep(0.002)

    @dramatiq.actor(broker=broker, queue_name="webhooks", priority=9)
    def other() -> None:
        ran.append("other")

    assert not broker.send_many([short.message() for _ in range(3000)]).failed
    start_worker(threads=2)
    eventually(lambda: len(ran) > 500)
    other.send()
    eventually(lambda: broker.client.hlen(Keys(broker.namespace, "webhooks").leases) == 1 or "other" in ran)
    held_at = len(ran)
    eventually(lambda: "other" in ran)
    assert ran.index("other") - held_at < 200, "only what was handed over before it"
    assert ran.count("short") < 3000, "the other queue was busy all the time"
