"""The face of the fixture `callboard`: what has been sent, and running it."""

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature, unwrap
from random import Random
from typing import Any, cast

from dramatiq.actor import Actor

from service.broker import RedisBroker
from service.broker.cancelled import Cancelled
from service.broker.messages import decode_message
from service.broker.once import DEFAULT_TTL_SECONDS, FIRST_RESULT, is_wide
from service.errors import PayloadError
from service.job import Job
from service.middleware.retries import Retries
from service.observe.logs import is_wanted
from service.testing.clock import Clock
from service.testing.memory import DirectNotes, MemoryWire, NoRedis, Waiting
from service.testing.runner import Ended, Runner

#: A job that sends itself again would be run for ever.
MOST_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that has been sent and not run. `payload` has the actor's own types, `delay_seconds` is what is left."""

    job_id: str
    actor: str
    queue: str
    payload: dict[str, Any]
    attempt: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job.

    state: `succeeded`, `retrying`, `snoozed`, `dead` or `cancelled`. result: what the actor returned, as JSON. error:
    what it raised. delay_seconds: how long it waits for its next run, where there is one.
    """

    job_id: str
    actor: str
    queue: str
    payload: dict[str, Any]
    attempt: int
    state: str
    result: Any
    error: BaseException | None
    delay_seconds: float | None
    #: Whether another job of its idempotency key had succeeded, so that it did not run.
    skipped: bool = False


class Callboard:
    """A broker in memory. Sends are checked as in production, and recorded; `inline` and `drain` run them."""

    def __init__(self, broker: RedisBroker) -> None:
        self.clock = Clock()
        self._broker = broker
        self._wire = MemoryWire(self.clock)
        self._runner = Runner(broker)
        self._is_inline = False
        self._is_running = False

    @classmethod
    @contextmanager
    def on(cls, broker: RedisBroker) -> "Generator[Callboard]":
        """Stand in for a broker's Redis, until the end."""
        callboard = cls(broker)
        replaced: dict[str, Any] = {
            "wire": callboard._wire,
            "client": NoRedis(),
            "notes": DirectNotes(callboard._wire),
            "send_rows": callboard._then_run(broker.send_rows),
            "send_many": callboard._then_run(broker.send_many),
        }
        attributes = vars(broker)
        before = {name: attributes[name] for name in replaced if name in attributes}
        retries = [cast("Any", middleware) for middleware in broker.middleware if isinstance(middleware, Retries)]
        sources = [each._random for each in retries]
        attributes.update(replaced)
        for each in retries:
            each._random = _NoJitter()
        of_worker = logging.getLogger("dramatiq.worker.WorkerThread")
        of_worker.addFilter(is_wanted)
        try:
            yield callboard
        finally:
            of_worker.removeFilter(is_wanted)
            callboard._runner.stop()
            for each, source in zip(retries, sources, strict=True):
                each._random = source
            for name in replaced:
                del attributes[name]
            attributes.update(before)

    @contextmanager
    def inline(self) -> Generator[None]:
        """Within it each send runs its job at once, delayed or not, and raises what the job raises; none is retried.

        What a job sends runs when that job has ended well.
        """
        self._is_inline = True
        self._wire.take_new()
        try:
            yield
        finally:
            self._is_inline = False

    def drain(self, *, wait: bool = False) -> list[Run]:
        """Run what is due, with what that sends, and return each run in order.

        wait: whether to move the clock to whatever comes due next, until nothing is left.
        """
        runs: list[Run] = []
        while waiting := self._next(wait=wait):
            if len(runs) == MOST_RUNS:
                raise RuntimeError(f"After {MOST_RUNS} runs there is still more to run: does a job send itself again?")
            ended = self._run(waiting)
            if _is_the_tests_own(ended.error):
                raise cast("BaseException", ended.error)
            runs.append(self._keep(waiting, ended))
        return runs

    def enqueued(self, actor: Actor[..., Any] | str | None = None) -> list[Enqueued]:
        """Return what waits to run, of one actor or of all, in the order of the sends."""
        name = self._name_of(actor)
        found = [self._enqueued(each) for each in sorted(self._wire.waiting, key=lambda each: each.place)]
        return [each for each in found if name in (None, each.actor)]

    def assert_enqueued(self, actor: Actor[..., Any] | str, /, **payload: Any) -> Enqueued:
        """Return the first job of an actor that waits and has at least these fields. AssertionError where none has."""
        matching = self._matching(actor, payload)
        if not matching:
            raise AssertionError(f"{self._wanted(actor, payload)} is not enqueued. {self._known(actor)}")
        return matching[0]

    def refute_enqueued(self, actor: Actor[..., Any] | str, /, **payload: Any) -> None:
        """Raise AssertionError where a job of an actor waits and has at least these fields."""
        if self._matching(actor, payload):
            raise AssertionError(f"{self._wanted(actor, payload)} is enqueued. {self._known(actor)}")

    def _then_run(self, send: Callable[..., Any]) -> Callable[..., Any]:
        # Around the sends and not in the wire: what a job raises must not pass for an error of the send.
        def send_and_run(*args: Any, **kwargs: Any) -> Any:
            answer = send(*args, **kwargs)
            if self._is_inline and not self._is_running:
                self._run_new()
            return answer

        return send_and_run

    def _run_new(self) -> None:
        new = self._wire.take_new()
        while new:
            waiting = new.pop(0)
            self._wire.waiting.remove(waiting)
            ended = self._run(waiting)
            if ended.error is not None:
                raise ended.error
            new += self._wire.take_new()

    def _run(self, waiting: Waiting) -> Ended:
        queue, row = waiting.queue, waiting.row
        actor = self._broker.get_actor(row.actor) if self._broker.is_named(row.actor) else None
        options = actor.options if actor else {}
        scope = "" if is_wide(actor) else queue
        if row.key and (first := self._wire.result_of_key(scope, row.key)) is not None:
            answer = options.get("duplicate_result", FIRST_RESULT)
            result = json.loads(first) if answer is FIRST_RESULT else answer
            return Ended(None, "succeeded", result, None, skipped=True)
        ended = self._run_now(waiting)
        if row.key and ended.state == "succeeded":
            seconds = options.get("idempotency_ttl", DEFAULT_TTL_SECONDS)
            self._wire.take_key(scope, row.key, json.dumps(ended.result), seconds)
        return ended

    def _run_now(self, waiting: Waiting) -> Ended:
        self._is_running = True
        try:
            ended = self._runner.run(waiting, self.clock.now_ms)
        finally:
            self._is_running = False
        for follow_up in ended.follow_ups:
            self._wire.add_follow_up(follow_up)
        return ended

    def _next(self, *, wait: bool) -> Waiting | None:
        waiting = self._wire.next_due()
        if waiting is None and wait and self._wire.waiting:
            self.clock.now_ms = min(each.due_ms for each in self._wire.waiting)
            waiting = self._wire.next_due()
        return waiting

    def _keep(self, waiting: Waiting, ended: Ended) -> Run:
        enqueued = self._enqueued(waiting)
        will_run = ended.state in ("retrying", "snoozed")
        if will_run:
            row = waiting.row
            attempt = row.attempt + (ended.state == "retrying")
            again = row._replace(data=ended.again, attempt=attempt, delay_ms=ended.delay_ms)
            due_ms = self.clock.now_ms + ended.delay_ms
            self._wire.add(Waiting(waiting.queue, again, due_ms, waiting.place, waiting.sent_ms))
            self._runner.announce(decode_message(ended.again), ended.delay_ms)
        return Run(
            job_id=enqueued.job_id,
            actor=enqueued.actor,
            queue=enqueued.queue,
            payload=enqueued.payload,
            attempt=enqueued.attempt,
            state=ended.state,
            result=ended.result,
            error=ended.error,
            delay_seconds=ended.delay_ms / 1000 if will_run else None,
            skipped=ended.skipped,
        )

    def _enqueued(self, waiting: Waiting) -> Enqueued:
        row = waiting.row
        delay_seconds = max(waiting.due_ms - self.clock.now_ms, 0) / 1000
        name = self._broker.aliases.get(row.actor, row.actor)
        return Enqueued(row.entry, name, waiting.queue, self._payload_of(waiting), row.attempt, delay_seconds)

    def _payload_of(self, waiting: Waiting) -> dict[str, Any]:
        message = decode_message(waiting.row.data)
        named = dict(enumerate(message.args)) | message.kwargs
        if not self._broker.is_named(message.actor_name):
            return {str(name): value for name, value in named.items()}
        actor = self._broker.get_actor(message.actor_name)
        try:
            if not isinstance(actor, Job):
                return dict(signature(unwrap(actor.fn)).bind(*message.args, **message.kwargs).arguments)
            args, kwargs = actor.contract.load(message.args, message.kwargs)
        except (PayloadError, TypeError, ValueError):
            return {str(name): value for name, value in named.items()}
        if not actor.contract.takes_model:
            return kwargs
        (model,) = args or kwargs.values()
        return {name: getattr(model, name) for name in actor.contract.model.model_fields}

    def _matching(self, actor: Actor[..., Any] | str, payload: dict[str, Any]) -> list[Enqueued]:
        return [
            each
            for each in self.enqueued(actor)
            if all(name in each.payload and each.payload[name] == value for name, value in payload.items())
        ]

    def _name_of(self, actor: Actor[..., Any] | str | None) -> str | None:
        if actor is None:
            return None
        # A name that no actor has would never be enqueued, and a test that refutes it never fail.
        name = actor if isinstance(actor, str) else actor.actor_name
        return self._broker.get_actor(name).actor_name

    def _wanted(self, actor: Actor[..., Any] | str, payload: dict[str, Any]) -> str:
        return f"{self._name_of(actor)}({_listed(payload)}{', ...' if payload else '...'})"

    def _known(self, actor: Actor[..., Any] | str) -> str:
        of_actor = self.enqueued(actor)
        if of_actor:
            return "Of this actor: " + "; ".join(_listed(each.payload) or "no payload" for each in of_actor)
        others = sorted({each.actor for each in self.enqueued()})
        return f"Of other actors: {', '.join(others)}" if others else "Nothing is"


class _NoJitter(Random):
    """Lets a retry come after the stated delay: a test advances its clock by that."""

    def uniform(self, a: float, b: float) -> float:
        return a


def _listed(payload: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in payload.items())


def _is_the_tests_own(error: BaseException | None) -> bool:
    # `pytest.fail` within an actor, and Ctrl-C: no outcome of a job.
    return error is not None and not isinstance(error, Exception | Cancelled | SystemExit | GeneratorExit)
