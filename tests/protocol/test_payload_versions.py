"""Payloads of other versions, and renamed actors, in a real worker."""

from collections.abc import Callable
from typing import Any

import dramatiq
from dramatiq.message import Message
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.job import Job
from service.payload import PayloadVersions
from service.settings import Settings
from tests.jobs import state_of
from tests.protocol.test_worker import end_of
from tests.servers import eventually


def send(broker: RedisBroker, actor: str, payload: dict[str, Any], **options: Any) -> Message[Any]:
    broker.declare_queue("default")
    message: Message[Any] = Message("default", actor, (), payload, options)
    broker.send(message)
    return message


def greet_of(broker: RedisBroker, version: int, upgrades: dict[int, Any], fails_at: int = 0) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []

    def greet(*, first: str, last: str) -> str:
        seen.append((first, last))
        if len(seen) == fails_at:
            raise ConnectionError
        return first

    versions = PayloadVersions("people.greet", version, upgrades)
    options: dict[str, Any] = {"max_retries": 1, "min_backoff": 1, "max_backoff": 1, "payload_versions": versions}
    dramatiq.actor(greet, broker=broker, actor_class=Job, actor_name="people.greet", **options)
    return seen


def rename(old: dict[str, Any]) -> dict[str, Any]:
    return {"name": old["who"]["name"].pop()}


def split(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old["name"].partition(" ")
    return {"first": first, "last": last}


def test_old_payloads_run_brought_up_to_date_also_after_a_retry(
    broker: RedisBroker, start_worker: Callable[..., Worker]
) -> None:
    seen = greet_of(broker, 3, {1: rename, 2: split}, fails_at=1)
    start_worker(threads=1)
    first = send(broker, "people.greet", {"who": {"name": ["Ada Lovelace"]}})
    assert end_of(broker, first).result == "Ada"
    second = send(broker, "people.greet", {"name": "Bob B"}, payload_version=2)
    third = broker.get_actor("people.greet").send(first="Cy", last="C")  # type: ignore[call-arg]
    assert [end_of(broker, message).result for message in (second, third)] == ["Bob", "Cy"]
    assert seen == [("Ada", "Lovelace"), ("Ada", "Lovelace"), ("Bob", "B"), ("Cy", "C")]


def test_an_upgrade_that_fails_is_final(broker: RedisBroker, start_worker: Callable[..., Worker]) -> None:
    seen = greet_of(broker, 2, {1: lambda old: old["nothing"]})
    start_worker()
    end = end_of(broker, send(broker, "people.greet", {"name": "Ada"}))
    assert (end.state, end.attempt) == ("dead", 1)
    assert end.error
    assert "upgrade from version 1 to 2 failed: KeyError" in end.error["message"]
    assert seen == []


def test_a_version_that_is_not_read_is_left_to_others_and_then_a_dead_letter_with_its_bytes(
    broker: RedisBroker, start_worker: Callable[..., Worker], settings: Settings, monkeypatch: Any
) -> None:
    monkeypatch.setattr(broker, "_settings", lambda: settings.model_copy(update={"unknown_actor_seconds": 1.0}))
    greet_of(broker, 3, {2: split})

    @dramatiq.actor(broker=broker, actor_class=Job, actor_name="people.count")
    def count(*, number: int) -> None: ...

    newer = send(broker, "people.greet", {"full": "Ada"}, payload_version=4)
    forgotten = send(broker, "people.greet", {"who": "Ada"})
    unversioned = send(broker, "people.count", {"n": 1}, payload_version=2)
    start_worker()
    eventually(lambda: state_of(broker, newer) == "scheduled")
    for message, given in ((newer, 4), (forgotten, 1), (unversioned, 2)):
        end = end_of(broker, message)
        assert end.state == "dead"
        assert end.error
        assert end.error["type"] == "newer-format"
        assert f"The payload has version {given}, and {message.actor_name} reads" in end.error["message"]


def test_a_version_that_is_no_number_is_unreadable(broker: RedisBroker, start_worker: Callable[..., Worker]) -> None:
    greet_of(broker, 2, {1: split})
    start_worker()
    for wrong in (0, -1, 1.5, "2", True, [2]):
        end = end_of(broker, send(broker, "people.greet", {"name": "Ada"}, payload_version=wrong))
        assert end.error
        assert (end.state, end.error["type"]) == ("dead", "unreadable")
        assert "payload_version must be a whole number" in end.error["message"]


def test_a_message_with_an_old_name_runs_under_the_new_one(
    broker: RedisBroker, start_worker: Callable[..., Worker]
) -> None:
    greet_of(broker, 1, {})
    broker.declare_alias("people.hello", broker.get_actor("people.greet"))
    start_worker()
    end = end_of(broker, send(broker, "people.hello", {"first": "Ada", "last": "L"}))
    assert (end.state, end.result) == ("succeeded", "Ada")
    assert end.type == "people.greet"


def test_the_callback_of_a_death_is_told_in_its_own_version(
    broker: RedisBroker, start_worker: Callable[..., Worker]
) -> None:
    told: list[str] = []

    @dramatiq.actor(
        broker=broker, actor_class=Job, actor_name="t.told", payload_versions=PayloadVersions("t.told", 2, {})
    )
    def tell(job_id: str, reason: str) -> None:
        told.append(job_id)

    @dramatiq.actor(broker=broker, actor_class=Job, actor_name="t.die", max_retries=0, on_dead="t.told")
    def die() -> None:
        raise ValueError

    start_worker()
    message = die.send()
    eventually(lambda: told == [message.message_id])
