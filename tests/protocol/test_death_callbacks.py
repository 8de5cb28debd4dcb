"""The keys of a callback of a death, as of any other send."""

from typing import Annotated, Any

import pytest

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters
from service.broker.outcome import Dead, Failure
from service.broker.settlement import settlement_of
from service.job import Personal, Unique, job
from service.middleware.deaths import Deaths


def test_a_callback_has_its_idempotency_key_and_a_taken_unique_key_holds_it_back(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.told", queue="email", idempotency_key="told:{job_id}", unique=Unique("told:{reason}"))
    def told(*, job_id: str, reason: str) -> None: ...

    @job(name="t.die", queue="default", on_dead=told)
    def die() -> None: ...

    sent: list[Any] = [die.send(), die.send()]
    for _ in sent:
        [delivery] = broker.fetch("default", 1)[0]
        delivery.outcome = Dead(Failure("ValueError", "no", ""))
        broker.settle("default", [settlement_of(delivery)])
    for message in sent:
        letter = DeadLetters(broker).get(message.message_id)
        assert letter is not None
        Deaths().after_death(broker, letter)
    [callback] = broker.fetch("email", 10)[0]
    assert callback.lease.key == f"told:{sent[0].message_id}"
    assert callback.kwargs["job_id"] == sent[0].message_id


def test_a_callback_gets_personal_data_only_where_it_marks_it(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.plain", queue="email")
    def plain(*, payload: dict[str, Any]) -> None: ...

    @job(name="t.marked", queue="email")
    def marked(*, payload: Annotated[dict[str, Any], Personal], reason: str) -> None: ...

    def die(*, mail: Annotated[str, Personal], team: str) -> None: ...

    for callback, mail in ((plain, "***"), (marked, "ada@example.org")):
        dying: Any = job(name=f"t.die.{mail}", queue="default", on_dead=callback)(die)
        message = dying.send(mail="ada@example.org", team="red")
        [delivery] = broker.fetch("default", 1)[0]
        delivery.outcome = Dead(Failure("ValueError", "no", ""))
        broker.settle("default", [settlement_of(delivery)])
        letter = DeadLetters(broker).get(message.message_id)
        assert letter is not None
        Deaths().after_death(broker, letter)
        [told] = broker.fetch("email", 1)[0]
        assert told.actor_name == callback.actor_name
        assert told.kwargs["payload"]["kwargs"] == {"mail": mail, "team": "red"}
