"""Middleware of others on our broker: each hook as Dramatiq's reference states it, and the kinds that are in use."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import middleware as stock
from dramatiq.broker import MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage, default_middleware
from dramatiq.worker import ConsumerThread, Worker, WorkerThread

from service.broker import RedisBroker
from service.settings import Settings
from service.state.states import State
from tests.protocol.test_worker import StartWorker, end_of, find, states_of
from tests.servers import eventually

HOOKS = {name for name in vars(Middleware) if name.startswith(("before_", "after_"))}
#: A delay waits in Redis: no queue of its own is declared for it, and no worker holds it in its memory.
NEVER_CALLED = {"after_declare_delay_queue", "before_delay_message"}

Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Recorder(Middleware):
    """Notes the call of every hook, with what it was called with."""

    def __init__(self) -> None:
        self.calls: Calls = []

    def of(self, message_id: str) -> list[str]:
        """The hooks that were called for a message, in order."""
        return [name for name, args, _ in self.calls if getattr((*args, None)[0], "message_id", None) == message_id]

    def args_of(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args, _ in self.calls if called == name]


def _recording(name: str) -> Callable[..., None]:
    def hook(self: Recorder, broker: Any, *args: Any, **kwargs: Any) -> None:
        assert isinstance(broker, RedisBroker)
        inspect.signature(getattr(Middleware, name)).bind(self, broker, *args, **kwargs)
        self.calls.append((name, args, kwargs))

    return hook


for _name in HOOKS:
    setattr(Recorder, _name, _recording(_name))


@pytest.fixture
def recorder(broker: RedisBroker) -> Recorder:
    recorder = Recorder()
    broker.add_middleware(recorder)
    return recorder


def test_every_hook_is_called_with_what_the_reference_says(broker: RedisBroker, recorder: Recorder) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def divide(a: int, b: int) -> float:
        return a / b

    @dramatiq.actor(broker=broker, max_age=1)
    def too_late() -> None: ...

    broker.emit_after("process_boot")
    worker = Worker(broker, worker_timeout=100, worker_threads=2)
    old = too_late.message().copy(message_timestamp=1)
    worker.start()
    messages = [divide.send(6, 3), divide.send(1, 0), broker.enqueue(old, delay=10)]
    for message in messages:
        end_of(broker, message)
    worker.stop()
    assert {name for name, _, _ in recorder.calls} == HOOKS - NEVER_CALLED
    types = {
        "declare_actor": dramatiq.Actor,
        "declare_queue": str,
        "enqueue": Message,
        "ack": MessageProxy,
        "nack": MessageProxy,
        "process_message": MessageProxy,
        "skip_message": MessageProxy,
        "worker_boot": Worker,
        "worker_shutdown": Worker,
        "worker_thread_boot": WorkerThread,
        "worker_thread_shutdown": WorkerThread,
        "consumer_thread_boot": ConsumerThread,
        "consumer_thread_shutdown": ConsumerThread,
    }
    for name, args, _ in recorder.calls:
        kind = types.get(name.partition("_")[2])
        assert kind is None or isinstance(args[0], kind), (name, args)
    assert [args[1] for args in recorder.args_of("before_enqueue")] == [None, None, 10]
    assert [args[0] for args in recorder.args_of("after_declare_queue")] == ["default"], "once, for two actors"
    assert len(recorder.args_of("after_worker_thread_boot")) == 2


def test_the_hooks_of_a_success_in_their_order(
    broker: RedisBroker, recorder: Recorder, start_worker: StartWorker
) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> int:
        return 7

    start_worker()
    message = work.send_with_options(delay=10)
    eventually(lambda: "after_ack" in recorder.of(message.message_id))
    assert recorder.of(message.message_id) == [
        "before_enqueue",
        "after_enqueue",
        "before_process_message",
        "after_process_message",
        "before_ack",
        "after_ack",
    ]
    [outcome] = [kwargs for name, _, kwargs in recorder.calls if name == "after_process_message"]
    assert (outcome["result"], outcome.get("exception")) == (7, None)


def test_the_hooks_of_a_retry_are_those_of_a_send(
    broker: RedisBroker, recorder: Recorder, start_worker: StartWorker
) -> None:
    """As who counts retries expects: by `retries` in the options of what is enqueued."""

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=20, max_backoff=20)
    def fail() -> None:
        raise ValueError("no")

    message = fail.send()
    start_worker()
    eventually(lambda: "after_nack" in recorder.of(message.message_id))
    assert recorder.of(message.message_id) == [
        *("before_enqueue", "after_enqueue", "before_process_message", "after_process_message"),
        *("before_enqueue", "before_ack", "after_enqueue", "after_ack"),
        *("before_process_message", "after_process_message", "before_nack", "after_nack"),
    ]
    sent = recorder.args_of("after_enqueue")
    assert [(message.options.get("retries"), delay) for message, delay in sent] == [(None, None), (1, 20)]
    errors = [kwargs["exception"] for name, _, kwargs in recorder.calls if name == "after_process_message"]
    assert [repr(error) for error in errors] == ["ValueError('no')"] * 2


def test_send_many_calls_the_hooks_for_each(broker: RedisBroker, recorder: Recorder) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    messages = [work.message() for _ in range(3)]
    broker.send_many(messages, delay_ms=5)
    for name in ("before_enqueue", "after_enqueue"):
        assert [(message.message_id, delay) for message, delay in recorder.args_of(name)] == [
            (message.message_id, 5) for message in messages
        ]


def test_a_later_middleware_is_told_what_is_declared_already(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    recorder = Recorder()
    broker.add_middleware(recorder)
    assert [(name, args) for name, args, _ in recorder.calls] == [
        ("after_declare_actor", (work,)),
        ("after_declare_queue", ("default",)),
    ]


def test_before_goes_down_the_list_and_after_comes_up_it(broker: RedisBroker, start_worker: StartWorker) -> None:
    order: list[str] = []

    class Outer(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            order.append(f"before {type(self).__name__}")

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            order.append(f"after {type(self).__name__}")

    class Inner(Outer): ...

    class Last(Outer): ...

    broker.add_middleware(Last())
    broker.add_middleware(Outer(), before=Last)
    broker.add_middleware(Inner(), after=Outer)
    with pytest.raises(ValueError, match="not found"):
        broker.add_middleware(Outer(), before=stock.CurrentMessage)

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    start_worker()
    end_of(broker, work.send())
    names = ["Outer", "Inner", "Last"]
    assert order == [f"before {name}" for name in names] + [f"after {name}" for name in reversed(names)]


@pytest.mark.parametrize("kind", default_middleware)
def test_each_of_dramatiqs_own_has_a_place_to_stand_beside(broker: RedisBroker, kind: type[Middleware]) -> None:
    class Mine(Middleware): ...

    mine = Mine()
    broker.add_middleware(mine, before=kind)
    after = broker.middleware[broker.middleware.index(mine) + 1]
    assert isinstance(after, kind)


def test_options_of_a_middleware_are_taken_by_actors_and_by_sends(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    seen: list[Any] = []

    class Tenants(Middleware):
        @property
        def actor_options(self) -> set[str]:
            return {"tenant"}

        def before_process_message(self, broker: Any, message: Any) -> None:
            seen.append(message.options.get("tenant") or broker.get_actor(message.actor_name).options["tenant"])

    broker.add_middleware(Tenants())

    @dramatiq.actor(broker=broker, tenant="acme")
    def work() -> None: ...

    start_worker(threads=1)
    for message in (work.send(), work.send_with_options(tenant="umbrella")):
        end_of(broker, message)
    assert seen == ["acme", "umbrella"]


def test_what_a_middleware_puts_into_a_message_arrives_with_each_attempt(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """As a trace's context does."""
    seen: list[Any] = []

    class Tracing(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options.setdefault("trace", []).append("retries" in message.options)

        def before_process_message(self, broker: Any, message: Any) -> None:
            seen.append(list(message.options["trace"]))

    broker.add_middleware(Tracing())

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=5)
    def fail() -> None:
        raise ConnectionError

    start_worker()
    end_of(broker, fail.send())
    assert seen == [[False], [False, True]]


def test_a_middleware_refuses_a_send(broker: RedisBroker) -> None:
    class Refused(MiddlewareError): ...

    class Gate(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            raise Refused("not today")

    broker.add_middleware(Gate())

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    with pytest.raises(Refused, match="not today"):
        work.send()
    broker.join("default", timeout=1000)


def test_a_middleware_can_not_lose_a_retry_by_refusing_it(broker: RedisBroker, start_worker: StartWorker) -> None:
    class Gate(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            if "retries" in message.options:
                raise MiddlewareError("once only")

    broker.add_middleware(Gate())
    runs: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=3, min_backoff=1, max_backoff=5)
    def second_time_lucky() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionError

    start_worker()
    assert end_of(broker, second_time_lucky.send()).attempt == 2


@pytest.mark.parametrize(("fails", "expected"), [(False, State.SUCCEEDED), (True, State.DEAD)])
def test_a_middleware_skips_a_message(
    broker: RedisBroker, recorder: Recorder, start_worker: StartWorker, fails: bool, expected: State
) -> None:
    runs: list[int] = []

    class Skip(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            if fails:
                message.fail()
            raise SkipMessage("no")

    broker.add_middleware(Skip())

    @dramatiq.actor(broker=broker)
    def work() -> None:
        runs.append(1)

    message = work.send()
    start_worker()
    assert end_of(broker, message).state is expected
    ending = "nack" if fails else "ack"
    eventually(lambda: f"after_{ending}" in recorder.of(message.message_id))
    assert recorder.of(message.message_id)[2:] == [
        "before_process_message",
        "after_skip_message",
        f"before_{ending}",
        f"after_{ending}",
    ]
    assert runs == []


def test_a_middleware_error_before_a_job_is_the_jobs_failure(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []

    class Closed(MiddlewareError): ...

    class Gate(Middleware):
        asked = 0

        def before_process_message(self, broker: Any, message: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise Closed("the store of permits is away")

    broker.add_middleware(Gate(), before=stock.AgeLimit)

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=5)
    def work() -> None:
        runs.append(1)

    start_worker()
    message = work.send()
    assert (end_of(broker, message).state, runs) == (State.SUCCEEDED, [1])
    assert states_of(broker, message) == ["pending", "running", "retrying", "running", "succeeded"]


def test_a_middleware_that_fails_in_each_hook_ends_no_job_and_no_thread(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """Dramatiq logs such errors and goes on."""

    class Broken(Middleware): ...

    def hook(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    for name in HOOKS:
        setattr(Broken, name, hook)
    broker.add_middleware(Broken(), before=stock.AgeLimit)

    @dramatiq.actor(broker=broker, max_retries=0)
    def divide(a: int, b: int) -> float:
        return a / b

    start_worker(threads=1)
    bad, good = divide.send(1, 0), divide.send(6, 3)
    assert end_of(broker, bad).state is State.DEAD
    assert end_of(broker, good).result == 2


def test_hooks_that_a_wrapper_looks_up_are_called(broker: RedisBroker, start_worker: StartWorker) -> None:
    """As of a middleware that is wrapped to be switched on and off: its hooks are no part of its class."""
    seen: list[str] = []

    class Switch(Middleware):
        def __init__(self) -> None:
            self.after_ack = lambda broker, message: seen.append(message.message_id)  # type: ignore[method-assign]

    broker.add_middleware(Switch())

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    start_worker()
    message = work.send()
    eventually(lambda: seen == [message.message_id])


def test_a_middleware_that_measures_jobs_meets_each_of_them_whole(
    broker: RedisBroker, start_worker: StartWorker
) -> None:
    """As Dramatiq's Prometheus middleware: what it begins before a job it ends after it, in one thread."""
    counts: Counter[str] = Counter()
    running: dict[str, int] = {}

    class Metrics(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            running[message.message_id] = threading.get_ident()

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            assert running.pop(message.message_id) == threading.get_ident()
            counts["errors" if exception else "runs"] += 1

        after_skip_message = after_process_message

        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            counts["retries" if "retries" in message.options else "sends"] += 1

        def after_nack(self, broker: Any, message: Any) -> None:
            counts["rejects"] += 1

    broker.add_middleware(Metrics(), before=stock.AgeLimit)

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=1, max_backoff=5)
    def maybe(fails: bool) -> None:
        if fails:
            raise ConnectionError

    @dramatiq.actor(broker=broker, max_age=1)
    def too_late() -> None: ...

    start_worker()
    messages = [maybe.send(number % 2 == 0) for number in range(20)]
    messages.append(broker.enqueue(too_late.message().copy(message_timestamp=1)))
    for message in messages:
        end_of(broker, message)
    eventually(lambda: counts["rejects"] == 11)
    assert counts == {"sends": 21, "runs": 11, "errors": 30, "retries": 20, "rejects": 11}
    assert running == {}


def test_dramatiqs_own_loop_may_be_added_once_more(broker: RedisBroker, start_worker: StartWorker) -> None:
    """Its guide tells who writes async actors to add it."""
    broker.add_middleware(stock.AsyncIO())

    @dramatiq.actor(broker=broker)
    async def work() -> str:
        return "done"

    worker = start_worker()
    assert end_of(broker, work.send()).result == "done"
    worker.stop(timeout=20_000)
    assert not any(thread.is_alive() for thread in [*worker.workers, *worker.consumers.values()])


# Middleware that sends a message again


class Resend(Middleware):
    """Sends what failed again, under the same id: at once, with a delay, or, as Dramatiq's Retries, in its proxy."""

    def __init__(self, how: str, times: int) -> None:
        self.how = how
        self.times = times

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        done = message.options.get("resent", 0)
        if exception is None or done >= self.times:
            return
        if self.how == "proxy":
            message.options["resent"] = done + 1
            broker.enqueue(message, delay=5)
        else:
            again = message.copy(options={"resent": done + 1})
            broker.enqueue(again, delay=5 if self.how == "later" else None)


@pytest.mark.parametrize("how", ["at once", "later", "proxy"])
def test_each_repetition_that_a_middleware_sends_is_stored_and_run(
    broker: RedisBroker, start_worker: StartWorker, how: str
) -> None:
    """Case 02-D33 from its other side: a known id is no reason to take a send for a client's repetition."""
    broker.add_middleware(Resend(how, times=3))
    runs: Counter[int] = Counter()

    @dramatiq.actor(broker=broker, max_retries=0)
    def fail(number: int) -> None:
        runs[number] += 1  # one thread at a time for each number
        raise ConnectionError

    start_worker(threads=8)
    for number in range(50):
        fail.send(number)
    eventually(lambda: sum(runs.values()) >= 200)
    broker.join("default", timeout=20_000)
    assert runs == dict.fromkeys(range(50), 4)


def test_two_middleware_that_retry_lose_nothing_to_each_other(broker: RedisBroker, start_worker: StartWorker) -> None:
    broker.add_middleware(Resend("later", times=2))
    runs: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=5)
    def fail() -> None:
        runs.append(1)
        raise ConnectionError

    start_worker()
    message = fail.send()
    end_of(broker, message)
    broker.join("default", timeout=20_000)

    def runs_from(attempt: int, resent: int) -> int:
        own = runs_from(attempt + 1, resent) if attempt < 2 else 0
        theirs = runs_from(attempt, resent + 1) if resent < 2 else 0
        return 1 + own + theirs

    assert len(runs) == runs_from(attempt=1, resent=0) == 9


@pytest.fixture
def stock_broker(settings: Settings) -> Iterator[RedisBroker]:
    """Our broker with Dramatiq's own chain in the place of ours."""
    broker = RedisBroker(lambda: settings, [kind() for kind in default_middleware])
    yield broker
    broker.close()


def test_dramatiqs_own_chain_works_on_our_broker(stock_broker: RedisBroker) -> None:
    runs: Counter[str] = Counter()

    @dramatiq.actor(broker=stock_broker, max_retries=2, min_backoff=1, max_backoff=5)
    def work(word: str, fails: int) -> None:
        runs[word] += 1
        if runs[word] <= fails:
            raise ConnectionError(word)

    stock_broker.emit_after("process_boot")
    worker = Worker(stock_broker, worker_timeout=100, worker_threads=4)
    worker.start()
    try:
        messages = {word: work.send(word, fails) for word, fails in [("good", 0), ("late", 2), ("bad", 9)]}
        eventually(lambda: runs == {"good": 1, "late": 3, "bad": 3})
        stock_broker.join("default", timeout=20_000)
    finally:
        worker.stop()
    assert find(stock_broker, messages["good"]).state is State.SUCCEEDED
    assert find(stock_broker, messages["bad"]).state is State.DEAD
