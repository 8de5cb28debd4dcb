"""Payloads of earlier versions: what is read, in which steps, and which declarations can't work."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from service.errors import DeclarationError, PayloadError
from service.job import job
from service.payload import PayloadVersions


def split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return {**old, "first": first, "last": last}


def drop_title(old: dict[str, Any]) -> dict[str, Any]:
    old.pop("title", None)
    return old


class Person(BaseModel):
    first: str
    last: str
    tags: list[str] = []


def declare(**options: Any) -> Any:
    @job(name="people.greet", queue="default", **options)
    def greet(person: Person) -> str:
        return f"{person.first} {person.last}"

    return greet


def test_a_message_says_its_version_only_where_it_is_not_the_first(broker):
    greet = declare(version=2, upgrades={1: split_name})
    assert greet.message(Person(first="Ada", last="L")).options["payload_version"] == 2
    assert greet.message_from_json({"first": "Ada", "last": "L"}).options["payload_version"] == 2

    @job(name="people.count", queue="default")
    def count(*, number: int) -> None: ...

    assert "payload_version" not in count.message(number=1).options


def test_steps_are_taken_from_the_messages_version_on():
    versions = PayloadVersions("people.greet", 3, {1: drop_title, 2: split_name})
    assert versions.readable == range(1, 4)
    assert versions.upgrade({"title": "Dr", "name": "Ada Lovelace"}, 1) == {"first": "Ada", "last": "Lovelace"}
    assert versions.upgrade({"title": "Dr", "name": "A"}, 2) == {"title": "Dr", "first": "A", "last": ""}
    assert versions.upgrade({"name": "A"}, 3) == {"name": "A"}


@given(st.integers(1, 20), st.data())
def test_each_step_is_taken_once_and_in_order(current, data):
    oldest = data.draw(st.integers(1, current))
    upgrades = {step: lambda old, step=step: {"steps": [*old["steps"], step]} for step in range(oldest, current)}
    versions = PayloadVersions("t.act", current, upgrades)
    assert versions.readable == range(oldest, current + 1)
    given_version = data.draw(st.sampled_from(versions.readable))
    assert versions.upgrade({"steps": []}, given_version) == {"steps": list(range(given_version, current))}


def test_the_next_attempt_finds_the_message_as_it_was():
    document = {"name": "Ada Lovelace", "tags": ["a"]}

    def meddle(old: dict[str, Any]) -> dict[str, Any]:
        old["tags"].append("b")
        return split_name(old)

    PayloadVersions("people.greet", 2, {1: meddle}).upgrade(document, 1)
    assert document == {"name": "Ada Lovelace", "tags": ["a"]}


def test_a_step_that_fails_is_told_without_what_the_payload_holds():
    def fail(old: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(old["name"])

    with pytest.raises(PayloadError) as refused:
        PayloadVersions("people.greet", 2, {1: fail}).upgrade({"name": "Ada"}, 1)
    assert str(refused.value) == (
        "Invalid payload for people.greet: payload: its upgrade from version 1 to 2 failed: ValueError"
    )
    with pytest.raises(PayloadError, match="from version 1 to 2 must return an object, not NoneType"):
        PayloadVersions("people.greet", 2, {1: lambda old: None}).upgrade({}, 1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("version", [0, -1, 1.5, "2"])
def test_a_version_is_a_whole_number_from_1_on(broker, version):
    with pytest.raises(DeclarationError, match=r"people\.greet: version="):
        declare(version=version)


@pytest.mark.parametrize(
    ("version", "upgrades", "wrong"),
    [
        (3, {1: split_name}, "[1]"),
        (4, {1: split_name, 3: split_name}, "[1]"),
        (2, {1: split_name, 2: split_name}, "[2]"),
        (1, {0: split_name}, "[0]"),
        (2, {"1": split_name}, "['1']"),
    ],
)
def test_upgrades_with_a_gap_are_refused_where_they_are_declared(broker, version, upgrades, wrong):
    with pytest.raises(DeclarationError) as refused:
        declare(version=version, upgrades=upgrades)
    assert f"upgrades={wrong} don't lead to version={version}" in str(refused.value)


def test_an_upgrade_is_a_function(broker):
    with pytest.raises(DeclarationError, match=r"upgrades\[1\] must be a function"):
        declare(version=2, upgrades={1: "split_name"})


def test_the_oldest_versions_may_be_left_behind():
    assert PayloadVersions("t.act", 3, {2: drop_title}).readable == range(2, 4)
    assert PayloadVersions("t.act", 3, {}).readable == range(3, 4)
