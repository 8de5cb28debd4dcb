"""Keys of a tenant's jobs are its own, whoever sends the job: a job, a plain actor, a schedule, an operator."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.messages import copy_message
from service.broker.outcome import Dead, Failure, Succeeded
from service.broker.settlement import settlement_of
from service.errors import JobExists, PayloadError
from service.job import Job, Unique, job, send_at_once
from service.schedules import Every, Schedule
from service.schedules.messages import message_for, template_of
from service.schedules.state import Run
from tests.protocol.test_worker import end_of
from tests.servers import eventually

StartWorker = Callable[..., Worker]
QUEUE = "default"
TENANTS = ("acme", "umbrella", "a:b", "Ä %3A\ud800", "x" * 256)


@pytest.fixture
def work(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.work", queue=QUEUE, idempotency_key="same:{ref}")
    def work(*, ref: str, secret: str = "") -> str:
        return secret

    return work


@pytest.fixture
def only(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.only", queue=QUEUE, unique=Unique("one:{ref}"))
    def only(*, ref: str) -> None: ...

    return only


def settle_next(broker: RedisBroker, outcome: Any) -> Any:
    [delivery] = broker.fetch(QUEUE, 1)[0]
    delivery.outcome = outcome
    broker.settle(QUEUE, [settlement_of(delivery)])
    return delivery


@pytest.mark.parametrize("at_once", [False, True], ids=["follow-up", "at-once"])
def test_what_jobs_send_for_their_tenants_ends_with_no_others_result(
    broker: RedisBroker, start_worker: StartWorker, work: Any, at_once: bool
) -> None:
    sent: dict[str, Message[Any]] = {}

    def first(*, name: str) -> None:
        if at_once:
            with send_at_once():
                sent[name] = work.send(ref="r", secret=name)
        else:
            sent[name] = work.send(ref="r", secret=name)

    declare: Any = dramatiq.actor
    first_actor = declare(first, actor_class=Job, broker=broker)
    start_worker(threads=1)
    for tenant in TENANTS[:3]:
        first_actor.send_with_options(kwargs={"name": tenant}, tenant=tenant)
        eventually(lambda tenant=tenant: tenant in sent)
        assert end_of(broker, sent[tenant]).result == tenant
    first_actor.send_with_options(kwargs={"name": "again"}, tenant="acme")
    eventually(lambda: "again" in sent)
    assert end_of(broker, sent["again"]).result == "acme", "it is the duplicate of its own tenant's"


def test_keys_of_different_tenants_never_meet_and_those_of_one_do(broker: RedisBroker, only: Any) -> None:
    first = {tenant: only.send_with_options(kwargs={"ref": "r"}, tenant=tenant) for tenant in TENANTS}
    first[""] = only.send(ref="r")
    for tenant, message in first.items():
        with pytest.raises(JobExists) as refusal:
            only.send_with_options(kwargs={"ref": "r"}, **({"tenant": tenant} if tenant else {}))
        assert refusal.value.job_id == message.message_id


def test_a_plain_actors_key_is_scoped_too_and_its_own_limit_counts(broker: RedisBroker) -> None:
    @dramatiq.actor(broker=broker)
    def plain() -> None: ...

    key = "k" * 512
    keys = {broker.row(plain.message_with_options(idempotency_key=key, tenant=name), None).key for name in TENANTS}
    assert len(keys) == len(TENANTS)
    with pytest.raises(PayloadError, match="513 characters"):
        broker.row(plain.message_with_options(idempotency_key=key + "k", tenant="acme"), None)


def test_a_message_that_is_sent_again_keeps_its_key(broker: RedisBroker, work: Any) -> None:
    """As stock middleware does, and as what an earlier release has taken in over HTTP."""
    message = work.message_with_options(kwargs={"ref": "r"}, tenant="a:b")
    scoped = copy_message(message, options={"idempotency_key": "tenant:a%3Ab:same:r"})
    assert broker.row(message, None).key == broker.row(scoped, None).key == "tenant:a%3Ab:same:r"
    long = copy_message(message, options={"idempotency_key": "tenant:a%3Ab:" + "k" * 512})
    assert broker.row(long, None).key == "tenant:a%3Ab:" + "k" * 512


def test_jobs_of_schedules_of_two_tenants_are_not_each_others_duplicates(broker: RedisBroker, work: Any) -> None:
    keys: list[str] = []
    for number, tenant in enumerate(("acme", "umbrella")):
        schedule = Schedule(tenant, "t.work", Every(60), payload={"ref": "r"}, tenant=tenant)
        run = Run(f"0000000{number}-0000-0000-0000-000000000000", datetime(2026, 5, 4, tzinfo=UTC))
        broker.send(message_for(template_of(broker, schedule), schedule, run))
        keys.append(settle_next(broker, Succeeded('"x"')).lease.key)
    assert keys == ["tenant:acme:same:r", "tenant:umbrella:same:r"]


def test_a_cancelled_job_of_a_tenant_leaves_its_unique_key(broker: RedisBroker, only: Any) -> None:
    message = only.send_with_options(kwargs={"ref": "r"}, tenant="acme")
    unique = Keys(broker.namespace, QUEUE).unique
    assert broker.client.hkeys(unique) == [b"tenant:acme:one:r"]
    JobActs(broker).cancel(message.message_id, by="ada")
    assert broker.client.hkeys(unique) == []


def test_an_edited_replay_keeps_the_tenants_scope(broker: RedisBroker, work: Any) -> None:
    letters = DeadLetters(broker)

    def replayed(message: Message[Any]) -> str:
        broker.send(message)
        settle_next(broker, Dead(Failure("ValueError", "no", "")))
        letter = letters.get(message.message_id)
        assert letter
        assert letters.replay(letter, by="ada", payload={"ref": "new"}) is Replay.DONE
        delivery = settle_next(broker, Succeeded("1"))
        assert delivery.options["idempotency_key"] == delivery.lease.key
        return delivery.lease.key

    own = work.message_with_options(kwargs={"ref": "r"}, tenant="acme")
    assert replayed(own) == "tenant:acme:same:new"
    named = work.message_with_options(kwargs={"ref": "r"}, tenant="umbrella", idempotency_key="mine")
    assert replayed(named) == "tenant:umbrella:mine", "its sender has named it"
