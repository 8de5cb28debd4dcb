"""What an author says of errors, as a worker carries it out."""

from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.outcome import Reason
from service.errors import Declined, RetryAfter, Snooze
from tests.protocol.test_worker import end_of, states_of
from tests.servers import eventually

StartWorker = Callable[..., Worker]


def test_a_snooze_is_no_attempt_and_no_failure(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []
    told: list[Any] = []

    @dramatiq.actor(broker=broker)
    def tell(*about: Any) -> None:
        told.append(about)

    @dramatiq.actor(broker=broker, max_retries=0, on_failure="tell")
    def nap() -> str:
        runs.append(1)
        if len(runs) < 3:
            raise Snooze(0.05)
        return "awake"

    start_worker()
    message = nap.send()
    end = end_of(broker, message)
    assert (end.result, end.attempt) == ("awake", 1)
    assert states_of(broker, message) == ["pending", *["running", "scheduled"] * 2, "running", "succeeded"]
    assert told == []
    assert DeadLetters(broker).page().letters == []


def test_an_async_job_may_ask_for_a_time_too(broker: RedisBroker, start_worker: StartWorker) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=3, min_backoff=60_000)
    async def ask() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0.05)
        if len(runs) == 2:
            raise RetryAfter(0.05)
        return "done"

    start_worker()
    end = end_of(broker, ask.send())
    assert (end.result, end.attempt, len(runs)) == ("done", 2, 3)


@pytest.mark.parametrize(("error", "runs"), [(KeyError, 3), (TimeoutError, 3), (ValueError, 1), (Declined, 1)])
def test_an_error_is_tried_again_as_its_actor_says(
    broker: RedisBroker, start_worker: StartWorker, error: type[Exception], runs: int
) -> None:
    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=1, max_backoff=2, retry_for=(KeyError,))
    def fail() -> None:
        raise error("no")

    start_worker()
    message = fail.send()
    assert end_of(broker, message).attempt == runs
    letter = DeadLetters(broker).get(message.message_id)
    assert letter is not None
    assert [attempt["attempt"] for attempt in letter.attempts] == list(range(1, runs + 1))
    assert letter.reason is Reason.FAILED


def test_an_actor_that_nobody_knows_is_the_reason(broker: RedisBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor(broker=broker)
    def known() -> None: ...

    broker.intake._patience_ms = 0
    start_worker()
    message: Message[Any] = Message("default", "nobody", (), {}, {})
    broker.send(message)
    eventually(lambda: DeadLetters(broker).get(message.message_id))
    letter = DeadLetters(broker).get(message.message_id)
    assert letter is not None
    assert letter.reason is Reason.UNKNOWN_ACTOR


def test_whoever_wants_to_know_of_a_death_is_a_middleware(broker: RedisBroker, start_worker: StartWorker) -> None:
    seen: list[tuple[str, str]] = []

    class Counter(dramatiq.Middleware):
        def after_death(self, _: RedisBroker, letter: Any) -> None:
            seen.append((letter.function, letter.reason.value))

    class Broken(dramatiq.Middleware):
        def after_death(self, _: RedisBroker, letter: Any) -> None:
            raise ValueError("no")

    broker.add_middleware(Broken())
    broker.add_middleware(Counter())

    @dramatiq.actor(broker=broker, max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    start_worker()
    fail.send()
    eventually(lambda: seen)
    assert seen == [("fail", "failed")]
