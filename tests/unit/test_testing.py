"""The fixture `callboard`: what it records, how it runs it, and that it does what a worker does."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import dramatiq
import pytest
import redis
from dramatiq.composition import group, pipeline
from dramatiq.errors import ActorNotFound, Retry
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from pydantic import BaseModel

from service.errors import BrokerUnavailable, PayloadError
from service.job import Backoff, Cancelled, JobExists, Permanent, Unique, current_job, job, send_at_once
from service.testing import Callboard


class Order(BaseModel):
    number: int
    price: Decimal = Decimal("1.10")


@pytest.fixture
def callboard(broker):
    with Callboard.on(broker) as callboard:
        yield callboard


@pytest.fixture
def seen():
    return []


@pytest.fixture
def take(broker, seen):
    @job(name="orders.take", queue="default")
    def take(*, order_id: UUID, at: datetime | None = None) -> str:
        seen.append((order_id, at))
        return str(order_id)

    return take


ID = UUID(int=7)


def test_a_send_is_recorded_and_not_run(callboard, take, seen):
    message = take.send(order_id=ID)
    assert seen == []
    [enqueued] = callboard.enqueued(take)
    assert (enqueued.job_id, enqueued.actor, enqueued.queue) == (message.message_id, "orders.take", "default")
    assert enqueued.payload == {"order_id": ID, "at": None}
    assert (enqueued.attempt, enqueued.delay_seconds) == (1, 0)


def test_a_payload_that_does_not_fit_is_refused_as_in_production(callboard, take, broker):
    with pytest.raises(PayloadError, match="order_id"):
        take.send(order_id="x")
    plain = dramatiq.actor(lambda text: None, actor_name="plain", broker=broker)
    with pytest.raises(PayloadError, match="CALLBOARD_MAX_PAYLOAD_BYTES"):
        plain.send("x" * 300_000)
    with pytest.raises(ValueError, match="UUID"):
        broker.enqueue(Message("default", "plain", (), {}, {}, message_id="mine"))
    assert callboard.enqueued() == []


def test_what_is_enqueued_is_found_by_some_of_its_fields_in_their_own_types(callboard, take):
    take.send(order_id=ID, at=datetime(2026, 1, 1, tzinfo=UTC))
    take.send(order_id=UUID(int=8))
    assert callboard.assert_enqueued(take).payload["order_id"] == ID
    assert callboard.assert_enqueued("orders.take", order_id=UUID(int=8)).payload["at"] is None
    callboard.assert_enqueued(take, at=datetime(2026, 1, 1, tzinfo=UTC))
    callboard.refute_enqueued(take, order_id=ID, at=None)
    callboard.refute_enqueued(take, order_id=str(ID))
    callboard.refute_enqueued(take, color=1)
    with pytest.raises(AssertionError) as failed:
        callboard.assert_enqueued(take, order_id=UUID(int=9))
    assert str(failed.value).startswith(
        f"orders.take(order_id={UUID(int=9)!r}, ...) is not enqueued. Of this actor: order_id={ID!r}, at=datetime"
    )
    with pytest.raises(AssertionError, match=r"orders\.take\(\.\.\.\) is enqueued\. Of this actor: "):
        callboard.refute_enqueued(take)


def test_a_failed_assertion_says_what_else_is_enqueued(callboard, take, broker):
    other = dramatiq.actor(lambda: None, actor_name="other", broker=broker)
    with pytest.raises(AssertionError, match="Nothing is"):
        callboard.assert_enqueued(take)
    other.send()
    with pytest.raises(AssertionError, match="Of other actors: other"):
        callboard.assert_enqueued(take)
    with pytest.raises(ActorNotFound):
        callboard.refute_enqueued("orders.taek")


def test_both_forms_of_payloads_and_plain_actors_show_their_fields(callboard, broker):
    @job(name="orders.model", queue="default")
    def by_model(order: Order) -> None: ...

    @dramatiq.actor(broker=broker)
    def plain(a: int, b: int = 0, *, c: int = 0) -> None: ...

    by_model.send(Order(number=1))
    plain.send(1, b=2)
    callboard.assert_enqueued(by_model, number=1, price=Decimal("1.10"))
    callboard.assert_enqueued(plain, a=1, b=2)
    callboard.refute_enqueued(plain, c=0)


def test_a_payload_may_have_fields_named_like_the_asserts_own(callboard, broker):
    @job(name="odd.names", queue="default")
    def odd(*, actor: str, payload: int) -> None: ...

    odd.send(actor="a", payload=1)
    callboard.assert_enqueued(odd, actor="a", payload=1)
    with pytest.raises(AssertionError):
        callboard.assert_enqueued(odd, actor="b")


# Inline.


def test_inline_runs_a_send_at_once_with_the_types_and_the_context_of_a_worker(callboard, broker):
    seen: list[Any] = []

    @job(name="orders.who", queue="email")
    def who(order: Order) -> None:
        context = current_job()
        seen.append((order, context.job_id, context.actor, context.queue, context.attempt))

    order = Order(number=1)
    with callboard.inline():
        message = who.send(order)
    assert seen == [(order, message.message_id, "orders.who", "email", 1)]
    assert seen[0][0] is not order, "it has been JSON"
    assert callboard.enqueued() == []
    with pytest.raises(LookupError):
        current_job()
    who.send(order)
    assert len(seen) == 1, "and only within it"


def test_inline_raises_what_the_job_raises_and_retries_nothing(callboard, broker, take):
    runs: list[int] = []

    @job(name="orders.fail", queue="default")
    def fail(*, error: str) -> None:
        runs.append(current_job().attempt)
        take.send(order_id=ID)
        raise {"value": ValueError, "permanent": Permanent, "redis": redis.ConnectionError}[error]("no")

    for error, kind in (("value", ValueError), ("permanent", Permanent), ("redis", redis.ConnectionError)):
        with callboard.inline(), pytest.raises(kind, match="no"):
            fail.send(error=error)
    assert runs == [1, 1, 1]
    callboard.refute_enqueued(fail)


def test_inline_runs_what_a_job_sends_after_it_and_not_where_it_fails(callboard, broker, take, seen):
    order: list[str] = []

    @job(name="orders.outer", queue="default")
    def outer(*, fails: bool) -> None:
        take.send(order_id=ID)
        order.append(f"{len(seen)} seen")
        assert current_job().actor == "orders.outer"
        if fails:
            raise ValueError

    with callboard.inline():
        outer.send(fails=False)
        assert (order, len(seen)) == (["0 seen"], 1)
        with pytest.raises(ValueError):
            outer.send(fails=True)
    assert len(seen) == 1
    assert callboard.enqueued() == []


def test_what_a_job_sends_at_once_is_sent_though_it_fails(callboard, broker, take, seen):
    @dramatiq.actor(broker=broker, max_retries=0)
    def plain() -> None:
        take.send(order_id=UUID(int=1))
        raise ValueError

    @job(name="orders.typed", queue="default", max_attempts=1)
    def typed() -> None:
        with send_at_once():
            take.send_with_options(kwargs={"order_id": UUID(int=2)}, delay=1000)
        take.send(order_id=UUID(int=3))
        raise ValueError

    plain.send()
    typed.send()
    callboard.drain(wait=True)
    assert [order_id.int for order_id, _ in seen] == [1, 2]


def test_a_delay_of_what_a_job_sends_counts_from_its_success(callboard, broker, take):
    @job(name="orders.later", queue="default")
    def later() -> None:
        take.send_with_options(kwargs={"order_id": ID}, delay=60_000)

    later.send_with_options(delay=5_000)
    callboard.clock.advance(7)
    callboard.drain()
    assert callboard.assert_enqueued(take).delay_seconds == 60


def test_inline_runs_what_is_delayed_and_send_many_and_not_what_was_recorded_before(callboard, take, seen, broker):
    take.send(order_id=UUID(int=1))
    with callboard.inline():
        take.send_with_options(kwargs={"order_id": UUID(int=2)}, delay=60_000)
        report = broker.send_many([take.message(order_id=UUID(int=3)), take.message(order_id=UUID(int=4))])
    assert len(report.stored) == 2
    assert [order_id.int for order_id, _ in seen] == [2, 3, 4]
    assert [each.payload["order_id"].int for each in callboard.enqueued()] == [1]


def test_async_actors_run_too(callboard, broker, take, seen):
    @job(name="orders.wait", queue="default")
    async def wait(*, number: int) -> int:
        await asyncio.sleep(0)
        take.send(order_id=UUID(int=number))
        return number + current_job().attempt

    with callboard.inline():
        wait.send(number=1)
    wait.send(number=2)
    runs = callboard.drain()
    assert [run.result for run in runs] == [3, str(UUID(int=2))]
    assert [order_id.int for order_id, _ in seen] == [1, 2]


# Draining.


def test_drain_runs_what_is_due_and_what_that_sends(callboard, broker, take, seen):
    @job(name="orders.start", queue="email")
    def start(*, count: int) -> dict[str, int]:
        for _ in range(count):
            take.send(order_id=uuid4())
        return {"count": count}

    message = start.send(count=2)
    runs = callboard.drain()
    assert [(run.actor, run.state) for run in runs] == [
        ("orders.start", "succeeded"),
        *[("orders.take", "succeeded")] * 2,
    ]
    first = runs[0]
    assert (first.job_id, first.queue, first.payload) == (message.message_id, "email", {"count": 2})
    assert (first.attempt, first.result, first.error, first.delay_seconds) == (1, {"count": 2}, None, None)
    assert len(seen) == 2
    assert callboard.drain() == []


def test_what_a_job_sends_with_an_idempotency_key_is_found_by_its_actor(callboard, broker):
    @job(name="orders.pay", queue="default", idempotency_key="pay:{number}")
    def pay(*, number: int) -> None: ...

    @job(name="orders.start", queue="email")
    def start() -> None:
        pay.send(number=1)
        pay.send_with_options(kwargs={"number": 2}, delay=5000)

    start.send()
    assert [run.actor for run in callboard.drain()] == ["orders.start", "orders.pay"]
    assert [enqueued.payload for enqueued in callboard.enqueued(pay)] == [{"number": 2}]


def test_a_delay_is_over_when_the_clock_says_so(callboard, take, seen):
    take.send_with_options(kwargs={"order_id": ID}, delay=60_000)
    assert callboard.drain() == []
    callboard.clock.advance(59.999)
    assert callboard.drain() == []
    assert callboard.enqueued()[0].delay_seconds == 0.001
    callboard.clock.advance(0.001)
    assert len(callboard.drain()) == 1
    assert callboard.clock.seconds == 60
    with pytest.raises(ValueError, match="time does not go back"):
        callboard.clock.advance(-1)


def test_a_failure_is_retried_by_its_policy_on_the_tests_clock(callboard, broker):
    attempts: list[int] = []

    @job(name="orders.flaky", queue="default", max_attempts=3, backoff=Backoff(60, 3600))
    def flaky(*, number: Decimal) -> None:
        assert number == Decimal("1.10")
        attempts.append(current_job().attempt)
        raise ConnectionError("not yet")

    flaky.send(number=Decimal("1.10"))
    [run] = callboard.drain()
    assert (run.state, run.attempt, run.delay_seconds, str(run.error)) == ("retrying", 1, 60, "not yet")
    assert callboard.drain() == []
    assert callboard.assert_enqueued(flaky).attempt == 2
    callboard.clock.advance(60)
    [run] = callboard.drain()
    assert (run.state, run.attempt, run.delay_seconds) == ("retrying", 2, 120)
    callboard.clock.advance(120)
    [run] = callboard.drain()
    assert (run.state, run.attempt, run.delay_seconds) == ("dead", 3, None)
    assert isinstance(run.error, ConnectionError)
    assert attempts == [1, 2, 3]
    assert callboard.enqueued() == []


def test_drain_may_wait_for_everything(callboard, broker, take):
    @job(name="orders.flaky", queue="default", max_attempts=3, backoff=Backoff(60, 3600))
    def flaky() -> int:
        if current_job().attempt < 3:
            raise Retry(delay=500) if current_job().attempt == 2 else ConnectionError
        return current_job().attempt

    flaky.send()
    take.send_with_options(kwargs={"order_id": ID}, delay=10_000)
    runs = callboard.drain(wait=True)
    assert [(run.actor, run.state) for run in runs] == [
        ("orders.flaky", "retrying"),
        ("orders.take", "succeeded"),
        ("orders.flaky", "retrying"),
        ("orders.flaky", "succeeded"),
    ]
    assert callboard.clock.seconds == 60.5
    assert runs[-1].result == 3


def test_what_is_permanent_or_does_not_fit_is_not_retried(callboard, broker, take):
    @job(name="orders.refuse", queue="default")
    def refuse() -> None:
        raise Permanent("never")

    refuse.send()
    broker.enqueue(Message("default", "orders.take", (), {"order_id": "x"}, {}))
    broker.enqueue(Message("default", "orders.gone", (), {"a": 1}, {}))
    runs = callboard.drain(wait=True)
    assert [run.state for run in runs] == ["dead"] * 3
    assert isinstance(runs[0].error, Permanent)
    assert isinstance(runs[1].error, PayloadError)
    assert isinstance(runs[2].error, ActorNotFound)


def test_an_old_payload_is_upgraded_as_in_a_worker(callboard, broker):
    @job(name="orders.note", queue="default", version=2, upgrades={1: lambda old: {"number": int(old["no"])}})
    def note(*, number: int) -> int:
        return number

    broker.enqueue(Message("default", "orders.note", (), {"no": "7"}, {}))
    broker.enqueue(Message("default", "orders.note", (), {"no": "7"}, {"payload_version": 3}))
    note.send(number=8)
    runs = callboard.drain()
    assert [(run.state, run.result) for run in runs] == [("succeeded", 7), ("dead", None), ("succeeded", 8)]
    assert "has version 3" in str(runs[1].error)


def test_priority_decides_among_what_is_due(callboard, take, seen):
    for number, priority in ((1, 9), (2, 5), (3, 0), (4, 5)):
        take.send_with_options(kwargs={"order_id": UUID(int=number)}, priority=priority)
    callboard.drain()
    assert [order_id.int for order_id, _ in seen] == [3, 2, 4, 1]


def test_a_job_that_sends_itself_for_ever_is_noticed(callboard, broker, monkeypatch):
    monkeypatch.setattr("service.testing.callboard.MOST_RUNS", 50)

    @dramatiq.actor(broker=broker)
    def again() -> None:
        again.send()

    again.send()
    with pytest.raises(RuntimeError, match="After 50 runs"):
        callboard.drain()


def test_a_test_that_fails_within_a_job_fails(callboard, broker):
    @dramatiq.actor(broker=broker)
    def check() -> None:
        pytest.fail("not as it should be")

    check.send()
    with pytest.raises(pytest.fail.Exception, match="not as it should be"):
        callboard.drain()


def test_an_actor_of_one_delivery_runs_in_the_tests_process(callboard, broker, seen):
    @job(name="orders.once", queue="default", max_deliveries=1)
    def once() -> None:
        seen.append("here")

    once.send()
    assert [run.state for run in callboard.drain()] == ["succeeded"]
    with callboard.inline():
        once.send()
    assert seen == ["here", "here"]


def test_pipelines_groups_and_callbacks_of_dramatiq_run(callboard, broker):
    told: list[Any] = []

    @dramatiq.actor(broker=broker)
    def add(a: int, b: int) -> int:
        return a + b

    @dramatiq.actor(broker=broker)
    def tell(message: Any, result: Any) -> None:
        told.append(result)

    pipeline(
        [add.message(1, 2), add.message(3), add.message_with_options(args=(4,), on_success="tell")], broker=broker
    ).run()
    assert [run.result for run in callboard.drain()] == [3, 6, 10, None]
    assert told == [10]
    group([add.message(1, 1), add.message(2, 2)], broker=broker).run()
    assert [run.result for run in callboard.drain()] == [2, 4]


def test_the_middleware_of_a_broker_sees_all_its_hooks(callboard, broker, take):
    calls: list[str] = []

    class Tells(Middleware):
        def before_enqueue(self, broker, message, delay):
            calls.append("before_enqueue")

        def after_enqueue(self, broker, message, delay):
            calls.append("after_enqueue")

        def before_process_message(self, broker, message):
            calls.append("before_process")

        def after_process_message(self, broker, message, *, result=None, exception=None):
            calls.append("after_process")

    broker.add_middleware(Tells())
    take.send(order_id=ID)
    callboard.drain()
    assert calls == ["before_enqueue", "after_enqueue", "before_process", "after_process"]


def test_a_send_once_is_recorded_once(callboard, broker, take):
    message = take.message(order_id=ID)
    assert broker.send(message, once_within_seconds=60)
    assert not broker.send(message, once_within_seconds=60)
    callboard.clock.advance(60)
    assert broker.send(message, once_within_seconds=60)
    assert len(callboard.enqueued()) == 2


def test_what_needs_a_server_says_so(callboard, broker):
    with pytest.raises(RuntimeError, match="'ping' needs Redis"):
        broker.ping()
    with pytest.raises(RuntimeError, match="needs Redis"):
        broker.join("default")


def test_the_broker_is_itself_again_afterwards(broker, monkeypatch):
    actor = dramatiq.actor(lambda: None, actor_name="plain", broker=broker)
    before = dict(vars(broker))
    with Callboard.on(broker):
        actor.send()
    after = {name: value for name, value in vars(broker).items() if name in before or name in ("wire", "client")}
    assert after == before
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable):
        actor.send()


def test_what_a_job_says_of_itself_needs_no_server_and_a_checkpoint_outlives_its_attempt(callboard, broker, caplog):
    @job(name="orders.steps", queue="default", backoff=Backoff(1, 1))
    def steps() -> list[Any]:
        me = current_job()
        me.heartbeat()
        me.progress(1, 2)
        me.log("a step", number=me.attempt)
        before = me.resumed_from
        me.checkpoint({"attempt": me.attempt})
        if me.attempt == 1:
            raise ConnectionError
        return [before, me.tenant]

    message = steps.send_with_options(tenant="acme")
    with caplog.at_level("INFO", "callboard.job"):
        runs = callboard.drain(wait=True)
    assert [run.result for run in runs] == [None, [{"attempt": 1}, "acme"]]
    assert '"done": 1' in (broker.find_progress(message.message_id, "default") or "")
    assert caplog.messages.count("a step") == 2


def test_a_key_takes_effect_once_within_its_time_and_the_job_knows_it(callboard, broker, seen):
    @job(name="orders.mail", queue="email", idempotency_key="mail:{to}", idempotency_ttl="1h")
    def mail(*, to: str) -> int:
        seen.append((current_job().idempotency_key, current_job().fencing_token))
        return len(seen)

    @job(name="orders.close", queue="default")
    def close() -> None:
        mail.send(to="ada")

    close.send()
    mail.send(to="bob")
    runs = callboard.drain()
    assert sorted(run.actor for run in runs) == ["orders.close", "orders.mail", "orders.mail"]
    mail.send_with_options(kwargs={"to": "ada"}, delay=1000)
    callboard.assert_enqueued(mail, to="ada")
    [again] = callboard.drain(wait=True)
    assert (again.state, again.skipped, again.result) == ("succeeded", True, again.result)
    assert sorted(key for key, _ in seen) == ["mail:ada", "mail:bob"]
    assert seen[0][1] < seen[1][1]
    callboard.clock.advance(3601)
    mail.send(to="ada")
    [free] = callboard.drain()
    assert (free.skipped, free.result) == (False, 3)


def test_a_duplicate_has_the_actors_own_answer(callboard, broker):
    @job(name="orders.mail", queue="email", idempotency_key="mail:{to}", duplicate_result={"status": "already_sent"})
    def mail(*, to: str) -> dict[str, str]:
        return {"status": "sent"}

    for _ in range(2):
        mail.send(to="ada")
    assert [run.result for run in callboard.drain()] == [{"status": "sent"}, {"status": "already_sent"}]


def test_a_unique_job_is_refused_while_another_waits(callboard, broker):
    @job(name="orders.sync", queue="default", unique=Unique("{account}"))
    def sync(*, account: str) -> None: ...

    first = sync.send(account="a")
    with pytest.raises(JobExists) as refused:
        sync.send(account="a")
    assert refused.value.job_id == first.message_id
    sync.send(account="b")
    callboard.drain()
    sync.send(account="a")


def test_a_unique_job_may_be_replaced_or_moved(callboard, broker, seen):
    @job(name="orders.newest", queue="default", unique=Unique("newest:{account}", on_conflict="replace"))
    def newest(*, account: str, page: int) -> None:
        seen.append(page)

    @job(name="orders.calm", queue="default", unique=Unique("calm:{account}", on_conflict="reschedule"))
    def calm(*, account: str, page: int) -> None:
        seen.append(page)

    first = newest.send(account="a", page=1)
    assert newest.send(account="a", page=2).options["unique_met"] == first.message_id
    waiting = calm.send_with_options(kwargs={"account": "a", "page": 3}, delay=1000)
    assert calm.send_with_options(kwargs={"account": "a", "page": 4}, delay=5000).message_id == waiting.message_id
    callboard.drain()
    assert seen == [2]
    callboard.clock.advance(2)
    callboard.drain()
    assert seen == [2]
    callboard.clock.advance(4)
    callboard.drain()
    assert seen == [2, 3]


def test_what_has_waited_too_long_does_not_run(callboard, broker, seen):
    @job(name="orders.offer", queue="default", expires="1m")
    def offer() -> None:
        seen.append(1)

    offer.send()
    callboard.clock.advance(61)
    [run] = callboard.drain()
    assert (run.state, seen) == ("dead", [])


def test_a_result_needs_no_middleware_of_its_own(callboard, take, caplog):
    take.send(order_id=ID)
    callboard.drain()
    assert "Results middleware" not in caplog.text


def test_a_job_that_ends_itself_as_cancelled_is_seen_so(callboard, broker):
    @job(name="orders.stop", queue="default")
    def stop() -> None:
        raise Cancelled

    stop.send()
    [run] = callboard.drain()
    assert (run.state, run.result, callboard.drain()) == ("cancelled", None, [])
