"""What Dramatiq's guide and reference promise to who declares, sends and composes actors, kept by our broker."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.stub import StubBroker
from dramatiq.composition import group, pipeline
from dramatiq.encoder import JSONEncoder, PickleEncoder
from dramatiq.errors import ActorNotFound, QueueJoinTimeout, RateLimitExceeded, Retry
from dramatiq.generic import GenericActor
from dramatiq.message import Message, get_encoder, set_encoder
from dramatiq.middleware import CurrentMessage, GroupCallbacks, Shutdown
from dramatiq.middleware.time_limit import TimeLimitExceeded
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as RedisLimits
from dramatiq.results import ResultBackend, ResultFailure, ResultMissing, Results, ResultTimeout
from dramatiq.results.backends import RedisBackend, StubBackend
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import DeclarationError, Permanent
from service.job import Job
from service.state.states import State
from tests.protocol.test_worker import StartWorker, end_of, find, states_of
from tests.servers import RedisServer, eventually

# Declaring and sending


def test_an_actor_is_still_a_function(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    @dramatiq.actor(broker=broker)
    async def add_later(a: int) -> int:
        return a + 1

    assert (add(2, 3), add(2), add(a=1, b=1)) == (5, 3, 2)
    assert (add.fn(2), add.fn.__doc__, add.actor_name) == (3, "Add.", "add")
    with pytest.raises(RuntimeError, match="event loop"):
        add_later(1)  # there is none outside of a worker, as in Dramatiq
    broker.join("default", timeout=1000)  # and nothing was sent


def test_what_a_send_says_arrives(broker: RedisBroker, start_worker: StartWorker) -> None:
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []

    @dramatiq.actor(broker=broker)
    def take(*args: Any, **named: Any) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        seen.append((message.message_id, args, named, message.options.get("colour")))

    start_worker(threads=1)
    sent = [
        take.send(1, "two", [3], four=None),
        take.send_with_options(args=(1,), kwargs={"b": {"c": 0.5}}, colour="acme", delay=None),
        broker.enqueue(take.message_with_options(args=("by hand",), colour=7)),
    ]
    for message in sent:
        end_of(broker, message)
    assert seen == [
        (sent[0].message_id, (1, "two", [3]), {"four": None}, None),
        (sent[1].message_id, (1,), {"b": {"c": 0.5}}, "acme"),
        (sent[2].message_id, ("by hand",), {}, 7),
    ]
    assert CurrentMessage.get_current_message() is None


@pytest.mark.parametrize("delay", [300, timedelta(seconds=0.3)])
def test_a_delay_is_a_number_of_milliseconds_or_a_timedelta(
    broker: RedisBroker, start_worker: StartWorker, delay: Any
) -> None:
    @dramatiq.actor(broker=broker)
    def later() -> None: ...

    start_worker()
    job = end_of(broker, later.send_with_options(delay=delay))
    assert job.started_at is not None
    assert job.started_at - job.created_at >= timedelta(seconds=0.3)


def test_of_several_delays_the_shorter_is_first(broker: RedisBroker, start_worker: StartWorker) -> None:
    order: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(word: str) -> None:
        order.append(word)

    start_worker(threads=1)
    note.send_with_options(args=("last",), delay=1500)
    note.send_with_options(args=("second",), delay=750)
    note.send_with_options(args=("first",), delay=0)
    eventually(lambda: order == ["first", "second", "last"])


def test_what_waits_is_taken_by_priority(broker: RedisBroker, start_worker: StartWorker) -> None:
    """The lower number is first, of the actor or of one send; of equal ones the earlier send."""
    order: list[str] = []

    def note(word: str) -> None:
        order.append(word)

    actors = {
        priority: dramatiq.actor(note, broker=broker, actor_name=f"note{priority}", priority=priority)
        for priority in (1, 5, 9)
    }
    for number in range(3):
        for priority in (9, 5, 1):
            actors[priority].send(f"{priority}-{number}")
    actors[9].send_with_options(args=("urgent",), priority=0)
    start_worker(threads=1)
    eventually(lambda: len(order) == 10)
    assert order[0] == "urgent"
    assert [word for word in order if word != "urgent"] == [f"{p}-{n}" for p in (1, 5, 9) for n in range(3)]


def test_a_message_id_of_another_form_is_refused_with_the_reason(broker: RedisBroker) -> None:
    """Dramatiq takes any text; here the id is the job's key in the database, which is a UUID."""

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    for wrong in ("order-17", "", uuid.uuid4().hex, str(uuid.uuid4()).upper()):
        with pytest.raises(ValueError, match=f"message_id.*{wrong!r}.*UUID"):
            broker.enqueue(work.message().copy(message_id=wrong))
    broker.join("default", timeout=1000)


def test_a_send_to_a_queue_that_nobody_serves_is_refused(broker: RedisBroker) -> None:
    """Also Dramatiq's own name of a queue for delays: where a message waits is not its sender's to say."""

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    for queue in ("emial", "default.DQ"):
        with pytest.raises(DeclarationError, match=f"Unknown queue {queue!r}"):
            broker.enqueue(work.message().copy(queue_name=queue))
        with pytest.raises(DeclarationError, match=f"Unknown queue {queue!r}"):
            broker.send_many([work.message().copy(queue_name=queue)])


def test_one_message_sent_twice_is_two_runs(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker)
    def work() -> None:
        runs.append(1)

    message = work.message()
    broker.enqueue(message)
    broker.enqueue(message)
    broker.enqueue(message, delay=100)
    start_worker()
    eventually(lambda: len(runs) == 3)
    broker.join("default", timeout=10_000)


def test_a_message_is_copied_compared_and_encoded_as_dramatiq_does(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, actor_class=Job)
    def work(*, n: int) -> None: ...

    message = work.message(n=1)
    assert Message.decode(message.encode()) == message
    assert Message(**message.asdict()) == message
    copied = message.copy(kwargs={"n": 2}, options={"tenant": "acme"})
    assert (copied.kwargs, copied.options, copied.message_id) == ({"n": 2}, {"tenant": "acme"}, message.message_id)
    assert message.options == {}


@pytest.fixture
def pickled() -> Iterator[None]:
    before = get_encoder()
    set_encoder(PickleEncoder())
    yield
    set_encoder(before)


@pytest.mark.usefixtures("pickled")
def test_another_encoder_carries_what_json_can_not(broker: RedisBroker, start_worker: StartWorker) -> None:
    """Its bytes may hold anything, line breaks and NUL too, and pass through each of the scripts."""
    seen: list[Any] = []
    value = {"when": timedelta(seconds=1), "raw": bytes(range(256)) * 2, "set": {1, 2}}

    @dramatiq.actor(broker=broker, min_backoff=1, max_backoff=10)
    def take(thing: Any) -> None:
        seen.append(thing)
        if len(seen) == 1:
            raise ConnectionError

    start_worker()
    assert end_of(broker, take.send_with_options(args=(value,), delay=50)).attempt == 2
    assert seen == [value, value]


def test_a_broken_message_of_another_encoder_is_a_dead_letter(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    set_encoder(PickleEncoder())
    try:
        message = work.send()
    finally:
        set_encoder(JSONEncoder())
    start_worker()
    job = end_of(broker, message)
    assert (job.state, job.attempt) == (State.DEAD, 1)


# Kinds of actors


def test_class_based_actors_run(broker: RedisBroker, start_worker: StartWorker) -> None:
    done: list[str] = []

    class Base(GenericActor):
        class Meta:
            abstract = True
            queue_name = "email"
            max_retries = 7

        def perform(self, word: str) -> str:
            done.append(f"{self.prefix()} {word}")
            return word

        def prefix(self) -> str:
            raise NotImplementedError

    Base.Meta.broker = broker  # type: ignore[attr-defined]

    class Greet(Base):
        def prefix(self) -> str:
            return "hello"

    greet: Any = Greet  # Dramatiq puts an actor in the place of the class
    assert (greet.actor_name, greet.queue_name, greet.options["max_retries"]) == ("Greet", "email", 7)
    start_worker()
    assert end_of(broker, greet.send("world")).result == "world"
    greet("you")
    assert done == ["hello world", "hello you"]


def test_async_actors_run_beside_each_other_and_know_their_message(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    broker.add_middleware(CurrentMessage())
    waiting: list[asyncio.Event] = []

    @dramatiq.actor(broker=broker)
    async def meet() -> str:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 2:
            for event in waiting:
                event.set()
        await mine.wait()
        message = CurrentMessage.get_current_message()
        assert message is not None
        return message.message_id

    start_worker(threads=2)
    for message in [meet.send(), meet.send()]:
        assert end_of(broker, message).result == message.message_id


def test_a_time_limit_cancels_an_async_actor_which_cleans_up(broker: RedisBroker, start_worker: StartWorker) -> None:
    cleaned: list[str] = []

    @dramatiq.actor(broker=broker, max_retries=0, time_limit=200)
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")

    start_worker()
    job = end_of(broker, wait.send())
    assert job.error is not None
    assert "TimeLimitExceeded" in job.error["type"]
    assert cleaned == ["up"]


def test_an_actor_class_of_ones_own_is_used(broker: RedisBroker, start_worker: StartWorker) -> None:
    class Loud(dramatiq.Actor[Any, Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs).upper()

    @dramatiq.actor(broker=broker, actor_class=Loud)
    def say(word: str) -> str:
        return word

    start_worker()
    assert end_of(broker, say.send("hey")).result == "HEY"


def test_actors_declared_without_a_broker_belong_to_the_one_that_was_set(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.broker.global_broker", None)
    dramatiq.set_broker(broker)
    assert dramatiq.get_broker() is broker

    @dramatiq.actor
    def plain() -> None: ...

    assert plain.broker is broker
    assert broker.get_actor("plain") is plain
    pipe = pipeline([plain.message(), plain.message()]).run()
    assert find(broker, pipe.messages[0]).state is State.PENDING


def test_a_broker_tells_what_is_declared_on_it(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker, queue_name="email")
    def one() -> None: ...

    for _ in range(2):
        broker.declare_queue("default")
    assert broker.get_declared_queues() == {"email", "default"}
    assert broker.get_declared_delay_queues() == set(), "delays wait in Redis, not in a queue of their own"
    assert broker.get_declared_actors() == {"one"}
    assert broker.get_actor("one") is one
    with pytest.raises(ActorNotFound):
        broker.get_actor("two")
    with pytest.raises(ValueError, match="already registered"):
        dramatiq.actor(one.fn, broker=broker, actor_name="one")
    with pytest.raises(ValueError, match="undefined: no_such_option"):
        dramatiq.actor(one.fn, broker=broker, actor_name="two", no_such_option=1)


def test_unit_tests_on_a_stub_broker_need_no_redis() -> None:
    """Dramatiq's way to test plain actors; a @job is called as the function that it is."""
    stub = StubBroker()

    @dramatiq.actor(broker=stub, max_retries=0)
    def divide(a: int, b: int) -> float:
        return a / b

    worker = Worker(stub, worker_timeout=100)
    worker.start()
    try:
        divide.send(1, 0)
        with pytest.raises(ZeroDivisionError):
            stub.join("default", timeout=10_000)
    finally:
        worker.stop()


# Composing


class Noted:
    """An actor that notes what it is called with, and passes its sum on."""

    def __init__(self, broker: RedisBroker, **options: Any) -> None:
        self.calls: list[tuple[int, ...]] = []

        @dramatiq.actor(broker=broker, actor_name="total", **options)
        def total(*numbers: int) -> int:
            self.calls.append(numbers)
            return sum(numbers)

        self.actor = total


def test_pipelines_pass_each_result_on(broker: RedisBroker, start_worker: StartWorker) -> None:
    noted = Noted(broker)
    total = noted.actor
    start_worker()
    (total.message(1) | total.message(10) | total.message(100)).run()
    eventually(lambda: noted.calls == [(1,), (10, 1), (100, 11)])


@pytest.fixture(autouse=True)
def _global_broker(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # `|` knows no broker but the global one.
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)


def test_pipelines_nest_wait_and_drop_results_where_told(broker: RedisBroker, start_worker: StartWorker) -> None:
    noted = Noted(broker)
    total = noted.actor
    start_worker()
    inner = pipeline([total.message(2), total.message_with_options(args=(3,), pipe_ignore=True)], broker=broker)
    pipe = pipeline([total.message(1), inner, total.message_with_options(args=(4,), delay=300)], broker=broker)
    assert len(pipe) == 4
    pipe.run(delay=200)
    eventually(lambda: len(noted.calls) == 4)
    assert states_of(broker, pipe.messages[0])[0] == "scheduled"
    assert noted.calls == [(1,), (2, 1), (3,), (4, 3)]
    last = end_of(broker, pipe.messages[-1])
    assert last.started_at is not None
    assert last.started_at - last.created_at >= timedelta(seconds=0.3), "a step's own delay"


def test_typed_actors_are_steps_too(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker, actor_class=Job)
    def first(*, n: int) -> int:
        return n + 1

    @dramatiq.actor(broker=broker, actor_class=Job)
    def second(n: int) -> int:
        return n * 10

    start_worker()
    bare = Message(queue_name="default", actor_name="second", args=(), kwargs={}, options={})
    pipe = pipeline([first.message(n=1), bare], broker=broker).run()
    assert end_of(broker, pipe.messages[-1], 20).result == 20


def test_a_pipeline_stops_at_the_step_that_fails(broker: RedisBroker, start_worker: StartWorker) -> None:
    ran: list[str] = []

    @dramatiq.actor(broker=broker)
    def refuse() -> None:
        raise Permanent("no")

    @dramatiq.actor(broker=broker)
    def after(_result: Any) -> None:
        ran.append("after")

    start_worker()
    pipe = pipeline([refuse.message(), after.message()], broker=broker).run()
    assert end_of(broker, pipe.messages[0]).state is State.DEAD
    broker.join("default", timeout=10_000)
    assert broker.find_record(pipe.messages[1].message_id) is None
    assert ran == []


def test_a_group_calls_back_once_when_all_have_succeeded(
    broker: RedisBroker, redis_server: RedisServer, start_worker: StartWorker
) -> None:
    called: list[int] = []
    broker.add_middleware(GroupCallbacks(RedisLimits(url=redis_server.url)))
    noted = Noted(broker)

    @dramatiq.actor(broker=broker)
    def finalize(n: int) -> None:
        called.append(n)

    start_worker()
    steps = [noted.actor.message(number) for number in range(5)]
    steps += [pipeline([noted.actor.message(9), noted.actor.message(1)], broker=broker)]
    together = group(steps, broker=broker)
    together.add_completion_callback(finalize.message(7))
    together.run(delay=50)
    eventually(lambda: called == [7])
    broker.join("default", timeout=10_000)
    assert (called, len(noted.calls)) == ([7], 7)


# Results


@pytest.fixture(params=["redis", "stub"])
def results(request: pytest.FixtureRequest, broker: RedisBroker, redis_server: RedisServer) -> ResultBackend:
    # Without a time-out of its own, since it waits for a result in one read.
    client = redis.Redis(port=redis_server.port, socket_timeout=None)
    backend: ResultBackend = RedisBackend(client=client) if request.param == "redis" else StubBackend()
    broker.add_middleware(Results(backend=backend))
    return backend


def test_results_are_stored_where_asked_for(
    broker: RedisBroker, results: ResultBackend, start_worker: StartWorker
) -> None:
    noted = Noted(broker, store_results=True)

    @dramatiq.actor(broker=broker)
    def silent() -> int:
        return 1

    early = noted.actor.send(1, 2)
    with pytest.raises(ResultMissing):
        early.get_result()
    with pytest.raises(ResultTimeout):
        early.get_result(block=True, timeout=50)
    start_worker()
    assert early.get_result(block=True, timeout=20_000) == 3
    assert end_of(broker, early).result == 3, "ours is kept beside it"
    unstored = silent.send()
    asked = silent.send_with_options(store_results=True)
    assert asked.get_result(block=True, timeout=20_000) == 1
    end_of(broker, unstored)
    with pytest.raises(ResultMissing):
        unstored.get_result()


def test_results_of_compositions(broker: RedisBroker, results: ResultBackend, start_worker: StartWorker) -> None:
    total = Noted(broker, store_results=True).actor
    start_worker()
    pipe = pipeline([total.message(1), total.message(10)], broker=broker).run()
    assert pipe.get_result(block=True, timeout=20_000) == 11
    assert list(pipe.get_results(block=True, timeout=20_000)) == [1, 11]
    assert (pipe.completed, pipe.completed_count) == (True, 2)
    together = group([total.message(number) for number in range(4)], broker=broker).run()
    together.wait(timeout=20_000)
    assert list(together.get_results()) == [0, 1, 2, 3]
    assert (together.completed, together.completed_count) == (True, 4)


def test_a_failure_is_a_result_once_no_attempt_is_left(
    broker: RedisBroker, results: ResultBackend, start_worker: StartWorker
) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker, store_results=True, max_retries=1, min_backoff=200, max_backoff=200)
    def fail() -> None:
        runs.append(1)
        raise ValueError("no such order")

    @dramatiq.actor(broker=broker, store_results=True, max_age=1)
    def too_late() -> None: ...

    old = too_late.send()
    time.sleep(0.05)
    start_worker()
    message = fail.send()
    with pytest.raises(ResultFailure, match="no such order") as caught:
        message.get_result(block=True, timeout=20_000)
    assert (len(runs), caught.value.orig_exc_type) == (2, "ValueError")
    with pytest.raises(ResultFailure, match="age limit"):
        old.get_result(block=True, timeout=20_000)


def test_a_result_is_forgotten_after_its_time(
    broker: RedisBroker, results: ResultBackend, start_worker: StartWorker
) -> None:
    total = Noted(broker, store_results=True, result_ttl=2000).actor
    start_worker()
    message = total.send(1)
    assert message.get_result(block=True, timeout=20_000) == 1

    def is_forgotten() -> bool:
        try:
            message.get_result()
        except ResultMissing:
            return True
        return False

    eventually(is_forgotten)


# Failing, retrying, ending


@pytest.mark.parametrize("actor_class", [dramatiq.Actor, Job])
def test_callbacks_are_sent_what_happened(
    broker: RedisBroker, start_worker: StartWorker, actor_class: type[dramatiq.Actor[..., Any]]
) -> None:
    called: list[tuple[str, Any, Any]] = []

    @dramatiq.actor(broker=broker, actor_class=actor_class)
    def on_done(message: dict[str, Any], result: Any) -> None:
        called.append(("done", message, result))

    @dramatiq.actor(broker=broker, actor_class=actor_class)
    def on_failed(message: dict[str, Any], error: dict[str, str]) -> None:
        called.append(("failed", message, error))

    @dramatiq.actor(broker=broker, on_success="on_done", on_failure="on_failed", max_retries=0)
    def divide(a: int, b: int) -> float:
        return a / b

    @dramatiq.actor(broker=broker, max_retries=0)
    def silent(n: int) -> int:
        return n

    start_worker()
    good, bad = divide.send(6, 3), divide.send(1, 0)
    one_off = silent.send_with_options(args=(5,), on_success=on_done)
    eventually(lambda: len(called) == 3)
    by_id = {message["message_id"]: (kind, message["args"], value) for kind, message, value in called}
    assert by_id == {
        good.message_id: ("done", [6, 3], 2.0),
        bad.message_id: ("failed", [1, 0], {"type": "ZeroDivisionError", "message": "division by zero"}),
        one_off.message_id: ("done", [5], 5),
    }
    with pytest.raises(TypeError, match="on_success"):
        silent.send_with_options(args=(1,), on_success=len)


def test_a_message_older_than_its_age_limit_is_not_run(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=broker, max_age=100)
    def work(word: str) -> None:
        runs.append(word)

    old = work.send("old")
    patient = work.send_with_options(args=("patient",), max_age=60_000)
    time.sleep(0.15)
    start_worker()
    assert end_of(broker, old).state is State.DEAD
    assert end_of(broker, patient).state is State.SUCCEEDED
    assert runs == ["patient"]


def test_a_time_limit_of_one_send_holds_and_can_be_caught(broker: RedisBroker, start_worker: StartWorker) -> None:
    cleaned: list[str] = []

    @dramatiq.actor(broker=broker, max_retries=0, time_limit=float("inf"))
    def spin() -> str:
        try:
            while True:
                time.sleep(0.01)
        except TimeLimitExceeded:
            cleaned.append("up")
            return "stopped in time"

    start_worker()
    assert end_of(broker, spin.send_with_options(time_limit=200)).result == "stopped in time"
    assert cleaned == ["up"]


def test_options_of_one_send_count_before_those_of_the_actor(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[float] = []

    @dramatiq.actor(broker=broker, max_retries=9, min_backoff=60_000, max_backoff=60_000)
    def fail() -> None:
        runs.append(time.monotonic())
        raise ConnectionError

    start_worker()
    job = end_of(broker, fail.send_with_options(max_retries=2, min_backoff=100, max_backoff=150))
    assert (job.state, job.attempt) == (State.DEAD, 3)
    assert [later - sooner >= 0.1 for sooner, later in pairwise(runs)] == [True, True]


@pytest.mark.parametrize("throws", [KeyError, (OSError, LookupError)])
def test_errors_that_an_actor_throws_on_purpose_are_not_retried(
    broker: RedisBroker, start_worker: StartWorker, throws: Any
) -> None:
    @dramatiq.actor(broker=broker, max_retries=5, throws=throws)
    def miss() -> None:
        raise KeyError("x")

    start_worker()
    job = end_of(broker, miss.send())
    assert (job.state, job.attempt) == (State.DEAD, 1)


def test_an_actor_asks_for_a_retry_and_says_when(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[float] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=60_000, max_backoff=60_000)
    def not_yet() -> str:
        runs.append(time.monotonic())
        if len(runs) < 3:
            raise Retry("not yet", delay=200)
        return "now"

    start_worker()
    assert end_of(broker, not_yet.send()).result == "now"
    assert all(later - sooner >= 0.2 for sooner, later in pairwise(runs))


def test_a_predicate_decides_on_retries_in_place_of_their_number(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    asked: list[tuple[int, str]] = []

    def only_four_times(retries: int, error: BaseException) -> bool:
        asked.append((retries, str(error)))
        return isinstance(error, ConnectionError) and retries < 4

    @dramatiq.actor(broker=broker, retry_when=only_four_times, max_retries=0, min_backoff=1, max_backoff=10)
    def fail() -> None:
        raise ConnectionError("gone")

    @dramatiq.actor(broker=broker, retry_when=lambda *_: True)
    def refuse() -> None:
        raise Permanent("never")

    @dramatiq.actor(broker=broker, retry_when=lambda *_: 1 / 0)
    def confuse() -> None:
        raise ConnectionError("gone")

    start_worker()
    assert end_of(broker, fail.send()).attempt == 5
    assert asked == [(retries, "gone") for retries in range(5)]
    assert end_of(broker, refuse.send()).attempt == 1, "what can never succeed is not asked about"
    assert end_of(broker, confuse.send()).state is State.DEAD, "a predicate's own failure is no success"


def test_the_last_failure_is_told_to_the_actor_that_was_named(broker: RedisBroker, start_worker: StartWorker) -> None:
    told: list[Any] = []

    @dramatiq.actor(broker=broker, actor_class=Job)
    def give_up(message: dict[str, Any], retries: dict[str, int]) -> None:
        told.append((message["message_id"], message["args"], retries))

    @dramatiq.actor(broker=broker, on_retry_exhausted="give_up", max_retries=2, min_backoff=1, max_backoff=5)
    def fail(word: str) -> None:
        raise ConnectionError(word)

    @dramatiq.actor(broker=broker, on_retry_exhausted="give_up", throws=KeyError)
    def miss() -> None:
        raise KeyError

    start_worker()
    end_of(broker, miss.send())
    message = fail.send("gone")
    eventually(lambda: told)
    broker.join("default", timeout=10_000)
    assert told == [(message.message_id, ["gone"], {"retries": 2, "max_retries": 2})]


def test_a_job_over_its_rate_limit_comes_back_until_it_fits(
    broker: RedisBroker, redis_server: RedisServer, start_worker: StartWorker
) -> None:
    limits = RedisLimits(url=redis_server.url)
    mutex = ConcurrentRateLimiter(limits, f"mutex-{broker.namespace}", limit=1, ttl=60_000)
    refused: list[int] = []
    running: list[int] = []
    peak: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=200, min_backoff=20, max_backoff=60)
    def alone() -> None:
        try:
            with mutex.acquire():
                running.append(1)
                peak.append(len(running))
                time.sleep(0.1)
                running.pop()
        except RateLimitExceeded:
            refused.append(1)
            raise

    messages = [alone.send() for _ in range(4)]
    start_worker()
    assert [end_of(broker, message).state for message in messages] == [State.SUCCEEDED] * 4
    assert (max(peak), bool(refused)) == (1, True)


def test_a_job_that_asks_for_it_is_interrupted_by_the_shutdown_and_runs_again(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    runs: list[str] = []
    started = threading.Event()

    @dramatiq.actor(broker=broker, notify_shutdown=True, min_backoff=1, max_backoff=10)
    def long() -> str:
        runs.append("start")
        started.set()
        try:
            while len(runs) == 1:
                time.sleep(0.01)
        except Shutdown:
            runs.append("interrupted")
            raise
        return "done"

    message = long.send()
    first = start_worker(threads=1)
    assert started.wait(20)
    first.stop(timeout=20_000)
    assert find(broker, message).state is State.RETRYING
    start_worker(threads=1)
    assert end_of(broker, message).result == "done"
    assert runs == ["start", "interrupted", "start"]


# A worker in a process of one's own


def test_one_broker_serves_one_worker_after_another(broker: RedisBroker) -> None:
    """As in a test-suite with a worker for each test, on the broker of the actors' modules."""

    @dramatiq.actor(broker=broker)
    def echo(n: int) -> int:
        return n

    for turn in range(3):
        worker = Worker(broker, worker_timeout=100, worker_threads=2)
        worker.start()
        try:
            messages = [echo.send(turn) for _ in range(10)]
            broker.join("default", timeout=20_000)
            worker.join()
            assert [find(broker, message).result for message in messages] == [turn] * 10
        finally:
            worker.stop()
        assert broker.client.hlen(Keys(broker.namespace, "default").leases) == 0


def test_join_gives_up_when_its_time_is_over(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    work.send()
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=100)
    broker.flush_all()
    broker.join("default", timeout=100)


def test_what_was_flushed_does_not_run(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    def note(word: str) -> None:
        runs.append(word)

    mine = dramatiq.actor(note, broker=broker, actor_name="mine")
    mail = dramatiq.actor(note, broker=broker, actor_name="mail", queue_name="email")
    mine.send("flushed")
    mine.send_with_options(args=("flushed too",), delay=10)
    kept = mail.send("kept")
    broker.flush("default")
    start_worker()
    end_of(broker, kept)
    fresh = mine.send("fresh")
    end_of(broker, fresh)
    assert runs == ["kept", "fresh"]


def test_a_paused_worker_starts_nothing_until_it_is_resumed(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(word: str) -> None:
        runs.append(word)

    worker = start_worker(threads=2)
    end_of(broker, note.send("before"))
    worker.pause()
    message = note.send("while paused")
    time.sleep(0.5)
    assert runs == ["before"]
    worker.resume()
    end_of(broker, message)
    worker.join()
    assert runs == ["before", "while paused"]


def test_a_worker_takes_the_queues_that_it_is_given(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def default() -> None: ...

    @dramatiq.actor(broker=broker, queue_name="email")
    def email() -> None: ...

    other, mine = default.send(), email.send()
    worker = Worker(broker, queues={"email"}, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        end_of(broker, mine)
        assert find(broker, other).state is State.PENDING
    finally:
        worker.stop()


def test_a_consumer_without_a_worker_takes_refuses_and_gives_back(broker: RedisBroker) -> None:
    """The reference's consumer, for who writes a worker of another kind."""

    @dramatiq.actor(broker=broker, actor_name="t")
    def t() -> None: ...

    sent = [t.send() for _ in range(3)]
    consumer = broker.consume("default", prefetch=3, timeout=100)
    taken = [taken for taken in (next(consumer) for _ in range(3)) if taken is not None]
    assert [each.message_id for each in taken] == [each.message_id for each in sent]
    assert next(consumer) is None
    consumer.ack(taken[0])
    consumer.nack(taken[1])
    consumer.requeue([taken[2]])
    eventually(
        lambda: [find(broker, message).state for message in sent] == [State.SUCCEEDED, State.DEAD, State.PENDING]
    )
    assert states_of(broker, sent[2]) == ["pending", "running", "pending"]
    again: Callable[[], Any] = lambda: next(consumer)  # noqa: E731
    eventually(lambda: (found := again()) and found.message_id == sent[2].message_id)
    consumer.close()
