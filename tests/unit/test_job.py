import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import dramatiq
import pytest
from dramatiq.errors import ActorNotFound
from pydantic import BaseModel

from service.broker.delivery import Delivery, Lease
from service.errors import DeclarationError, PayloadError
from service.job import Backoff, Job, current_job, job
from service.middleware.context import CurrentJob
from service.queues import QUEUES, policy_of

ROOT = Path(__file__).parents[2]


class Order(BaseModel):
    number: int
    note: str = ""


@pytest.fixture
def run(broker):
    """Run a message as a worker does: the chain's context around the call with JSON."""

    def process(message):
        lease = Lease(
            queue=message.queue_name,
            entry=message.message_id,
            token="1",
            started_ms=2000,
            created_ms=1000,
            attempt=message.options.get("retries", 0) + 1,
            lapses=0,
            max_deliveries=3,
        )
        delivery = Delivery(dramatiq.Message.decode(message.encode()), lease)
        context = CurrentJob()
        context.before_process_message(broker, delivery)
        try:
            return broker.get_actor(message.actor_name)(*delivery.args, **delivery.kwargs)
        finally:
            context.after_process_message(broker, delivery)

    return process


def test_both_forms_travel_as_keywords_and_arrive_as_what_the_function_declares(broker, run):
    seen = []

    @job(name="orders.take", queue="default")
    def take(order: Order) -> None:
        seen.append(order)

    @job(name="orders.take-fields", queue="default")
    def take_fields(*, number: int, note: str = "") -> None:
        seen.append((number, note))

    by_model, by_fields = take.message(Order(number=1)), take_fields.message(number=1)
    assert by_model.args == by_fields.args == ()
    assert by_model.kwargs == by_fields.kwargs == {"number": 1, "note": ""}
    run(by_model)
    run(by_fields)
    assert seen == [Order(number=1), (1, "")]


def test_a_json_object_from_outside_makes_the_same_message(broker):
    @job(name="orders.take", queue="default")
    def take(order: Order) -> None: ...

    assert take.message_from_json({"number": 1}).kwargs == take.message(Order(number=1)).kwargs
    with pytest.raises(PayloadError):
        take.message_from_json({"number": 1, "nots": ""})


def test_a_wrong_payload_never_reaches_the_broker(broker, monkeypatch):
    @job(name="orders.take", queue="default")
    def take(*, number: int) -> None: ...

    monkeypatch.setattr(broker, "enqueue", lambda *_, **__: pytest.fail("sent"))
    for send in (
        lambda: take.send(number="one"),
        lambda: take.send_with_options(kwargs={"number": "one"}),
        lambda: take.send_with_options(args=(1,)),
        lambda: take.send(),
    ):
        with pytest.raises(PayloadError, match=r"^Invalid payload for orders\.take: "):
            send()


def test_options_of_a_send_travel_beside_the_payload(broker, monkeypatch):
    sent = []
    monkeypatch.setattr(broker, "enqueue", lambda message, *, delay=None: sent.append((message, delay)) or message)

    @job(name="orders.take", queue="default")
    def take(*, number: int) -> None: ...

    take.send_with_options(kwargs={"number": 1}, delay=500, max_retries=7)
    ((message, delay),) = sent
    assert (message.kwargs, message.options["max_retries"], delay) == ({"number": 1}, 7, 500)


def test_a_direct_call_runs_the_function_with_what_it_is_given(broker):
    @job(name="orders.take", queue="default")
    def take(order: Order) -> Order:
        return order

    @job(name="orders.note", queue="default")
    def note(text: str) -> str:
        return text

    order = Order(number=1)
    assert take(order) is order
    marker = object()
    assert note(marker) is marker


def test_a_call_inside_of_a_job_is_a_direct_one(broker, run):
    @job(name="orders.count-down", queue="default")
    def count_down(order: Order) -> int:
        # The worker's own call carries JSON; this one, of the same actor, carries the model.
        return 0 if not order.number else 1 + count_down(Order(number=order.number - 1))

    @job(name="orders.other", queue="default")
    def other(order: Order) -> int:
        return count_down(order)

    assert run(count_down.message(Order(number=3))) == 3
    assert run(other.message(Order(number=2))) == 2


def test_a_field_whose_alias_is_self_reaches_the_actor(broker, run):
    from pydantic import Field

    class Link(BaseModel):
        target: str = Field(alias="self")

    @job(name="links.follow", queue="default")
    def follow(link: Link) -> str:
        return link.target

    assert run(follow.message(Link(self="/jobs/1"))) == "/jobs/1"


def test_an_async_function_is_called_directly_as_one(broker):
    @job(name="orders.wait", queue="default")
    async def wait(*, number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert wait.message(number=1).kwargs == {"number": 1}
    with pytest.raises(PayloadError):
        wait.message(number="x")


def test_a_job_knows_itself_and_code_outside_of_one_does_not(broker, run):
    @job(name="orders.who", queue="email", aliases=("who",))
    def who() -> tuple[str, str, str, int]:
        context = current_job()
        return context.job_id, context.actor, context.queue, context.attempt

    message = who.message()
    assert run(message) == (message.message_id, "orders.who", "email", 1)
    assert run(message.copy(options={"retries": 2}))[3] == 3
    assert run(message.copy(actor_name="who"))[1] == "orders.who"
    with pytest.raises(LookupError, match="only known inside a running job"):
        current_job()


def test_a_thread_that_ran_a_job_knows_none_afterwards(broker, run):
    @job(name="orders.fail", queue="default")
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        run(fail.message())
    with pytest.raises(LookupError):
        current_job()


# Declarations that can't work are refused at import.


def declare(name="orders.take", **options):
    def take() -> None: ...

    return job(name=name, **{"queue": "default", **options})(take)


def test_two_actors_can_not_have_one_name(broker):
    declare()
    with pytest.raises(DeclarationError, match=r"Two actors are named 'orders\.take'.*test_job"):
        declare()


def test_an_alias_can_not_be_the_name_or_alias_of_another(broker):
    declare("orders.take", aliases=("take",))
    for name, aliases in (("orders.a", ("orders.take",)), ("orders.b", ("take",)), ("take", ())):
        with pytest.raises(DeclarationError):
            declare(name, aliases=aliases)


def test_an_alias_finds_its_actor(broker):
    take = declare("orders.take", aliases=("take", "take-order"))
    assert broker.get_actor("take") is broker.get_actor("orders.take") is take
    assert broker.known_types == ["orders.take", "take", "take-order"]
    with pytest.raises(ActorNotFound):
        broker.get_actor("orders")


def test_an_unknown_queue_is_refused_with_the_known_ones(broker, caplog):
    with pytest.raises(DeclarationError, match="known queues: email, default"):
        declare(queue="e-mail")
    with pytest.raises(DeclarationError, match="known queues: email, default"):
        dramatiq.actor(lambda: None, actor_name="plain", queue_name="e-mail", broker=broker)
    assert not caplog.records


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_job_runs_at_least_once(broker, attempts):
    with pytest.raises(DeclarationError, match=rf"orders\.take: max_attempts={attempts}"):
        declare(max_attempts=attempts)


def test_a_function_that_yields_is_refused_since_its_body_would_never_run(broker):
    def numbers():
        yield 1

    async def more_numbers():
        yield 1

    for function in (numbers, more_numbers):
        with pytest.raises(DeclarationError, match="yield"):
            job(name="orders.numbers", queue="default")(function)


def test_a_refused_declaration_leaves_nothing_behind(broker):
    def take(order) -> None: ...

    with pytest.raises(DeclarationError):
        job(name="orders.take", queue="default")(take)
    assert broker.known_types == []
    declare()


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": None},
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"min_backoff": 5000, "max_backoff": 1000},
        {"min_backoff": 4 * 3600 * 1000},
        {"min_backoff": -1},
        {"max_backoff": 8 * 24 * 3600 * 1000},
        {"max_backoff": float("nan")},
        {"min_backoff": None},
    ],
    ids=str,
)
def test_a_plain_actors_options_that_can_not_work_are_refused_where_it_is_declared(broker, options):
    with pytest.raises(DeclarationError, match=r"^plain: "):
        dramatiq.actor(lambda: None, actor_name="plain", broker=broker, **options)
    assert broker.known_types == []


def test_an_option_that_nothing_claims_is_refused(broker):
    with pytest.raises(ValueError, match="retry_if"):
        dramatiq.actor(lambda: None, actor_name="plain", broker=broker, retry_if=lambda *_: True)


# The queue's policy, where the actor is silent.


@pytest.mark.parametrize("queue", QUEUES)
def test_a_silent_actor_has_the_policy_of_its_queue(broker, queue):
    options = declare(queue=queue).options
    policy = policy_of(queue)
    assert options["max_retries"] == 2
    assert (options["min_backoff"], options["max_backoff"]) == (60_000, 3_600_000)
    assert options["time_limit"] == policy.time_limit_seconds * 1000
    soft_seconds = policy.soft_time_limit_seconds
    assert options.get("soft_time_limit") == (soft_seconds and soft_seconds * 1000)


def test_an_actor_overrides_the_policy(broker):
    options = declare(max_attempts=1, backoff=Backoff(0.5, 2)).options
    assert (options["max_retries"], options["min_backoff"], options["max_backoff"]) == (0, 500, 2000)


def test_limits_are_seconds_and_come_before_the_queues(broker):
    options = declare(soft_timeout=1.5, timeout=2, expires="1h").options
    assert (options["soft_time_limit"], options["time_limit"], options["expires_ms"]) == (1500, 2000, 3_600_000)
    options = declare(name="reports.short", queue="reports", timeout=10).options
    assert "soft_time_limit" not in options, "the queue's soft limit would come after the end"


def test_a_stated_rule_and_lists_of_errors_reach_the_options(broker):
    rule = Backoff(delay_seconds=60, factor=3, cap_seconds=9000, jitter=0)
    options = declare(backoff=rule, retry_for=[KeyError], permanent_for=[OSError], on_dead="audit.died").options
    assert (options["backoff_factor"], options["backoff_jitter"]) == (3, 0)
    assert (options["retry_for"], options["permanent_for"]) == ([KeyError], [OSError])
    assert options["on_dead"] == "audit.died"
    silent = declare(name="orders.leave").options
    assert (silent["backoff_factor"], silent["backoff_jitter"]) == (2, 0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"soft_timeout": 5, "timeout": 5}, r"soft_timeout=5 s must be less than timeout=5 s"),
        ({"soft_timeout": 400}, r"soft_timeout=400 s must be less than timeout=300 s"),
        ({"timeout": 0}, r"timeout=0 must be seconds"),
        ({"soft_timeout": "soon"}, r"soft_timeout='soon' must be seconds"),
        ({"expires": "1 week"}, r"expires='1 week' must be seconds"),
        ({"isolation": "pod"}, r"isolation='pod' must be \"thread\" or \"process\""),
        ({"memory_limit_mb": 512}, r"memory_limit_mb=512 has no effect without isolation=\"process\""),
        ({"memory_limit_mb": 1, "isolation": "process"}, r"memory_limit_mb=1 must be a whole number of MiB, 64"),
    ],
    ids=str,
)
def test_a_limit_that_can_not_work_is_refused_where_the_actor_is_declared(broker, options, words):
    with pytest.raises(DeclarationError, match=rf"^orders\.take: {words}"):
        declare(**options)
    assert broker.known_types == []


def test_a_coroutine_function_has_no_process_of_its_own(broker):
    async def wait() -> None: ...

    with pytest.raises(DeclarationError, match="make it a plain function"):
        job(name="orders.wait", queue="default", isolation="process")(wait)
    assert broker.known_types == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_for": [KeyError], "permanent_for": [KeyError]}, "KeyError is in retry_for and in permanent_for"),
        ({"retry_for": ["KeyError"]}, "retry_for holds 'KeyError', which is no class of errors"),
        ({"permanent_for": KeyError}, "must be a tuple of classes"),
        ({"on_dead": ""}, "on_dead='' must be the name of an actor"),
        ({"on_dead": "t.itself", "name": "t.itself"}, "on_dead names the actor itself"),
    ],
    ids=lambda value: None if isinstance(value, str) else "+".join(value),
)
def test_what_can_not_work_after_a_failure_is_refused(broker, options, words):
    with pytest.raises(DeclarationError, match=re.escape(words)):
        declare(**options)


def test_a_callback_may_be_given_as_an_actor(broker):
    callback = declare(name="audit.died")
    assert declare(name="orders.pay", on_dead=callback).options["on_dead"] == "audit.died"


def test_a_plain_actor_runs_as_it_would_without_us(broker, run):
    @dramatiq.actor(broker=broker, max_retries=0)
    def plain(*numbers, **names):
        return numbers, names

    assert not isinstance(plain, Job)
    assert plain.options["max_retries"] == 0
    assert plain.options["min_backoff"] == 60_000
    assert run(plain.message(1, a=2)) == ((1,), {"a": 2})


# Importing costs nothing.

LOOK_AROUND = """
import json, os, sys, threading
import actors.email
heavy = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "psycopg", "jinja2", "apscheduler", "aiosmtpd")
sockets = []
for each in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
    try:
        sockets += [os.readlink(f"/proc/self/fd/{each}")]
    except OSError:
        pass
message = actors.email.send_email.message(
    actors.email.EmailJobPayload(to="ann@example.org", subject="Hello", template_id="welcome")
)
print(json.dumps({
    "threads": [thread.name for thread in threading.enumerate()],
    "heavy": [name for name in heavy if name in sys.modules],
    "sockets": [target for target in sockets if target.startswith("socket:")],
    "payload": message.kwargs,
    "files": sorted(os.listdir(".")),
}))
"""


def test_importing_an_actor_opens_no_connection_starts_no_thread_and_needs_no_environment(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOOK_AROUND],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["threads"] == [threading.main_thread().name]
    assert seen["heavy"] == []
    assert seen["sockets"] == []
    assert seen["payload"]["to"] == "ann@example.org"
    assert seen["files"] == []


def test_importing_actors_first_does_not_make_a_broker_of_dramatiqs_own(tmp_path):
    code = "import actors.email, dramatiq.broker; print(dramatiq.broker.global_broker)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "None"


@pytest.mark.parametrize("name", ["", "two\nlines", "nul\x00"])
def test_a_name_that_could_not_be_stored_is_refused(name):
    with pytest.raises(DeclarationError, match="must be printable text"):

        @job(name=name, queue="default")
        def anything() -> None: ...


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("delai", "use delay"),
        ("countdown", "use delay, in ms from now"),
        ("timeout", "use time_limit, in ms"),
        ("max_retry", "use max_retries"),
        ("idempotencykey", "use idempotency_key"),
    ],
)
def test_an_option_of_a_send_that_has_no_effect_is_named_with_the_one_that_is_meant(broker, option, meant):
    with pytest.raises(PayloadError, match=f"{option}: is no option of a send: {meant}"):
        declare().message_with_options(**{option: 1})


def test_an_option_of_somebodys_middleware_and_those_of_messages_are_let_through(broker):
    given = {"colour": "red", "tenant": "acme", "priority": 1, "time_limit": 1000, "retries": 1}
    assert given.items() <= declare().message_with_options(**given).options.items()
