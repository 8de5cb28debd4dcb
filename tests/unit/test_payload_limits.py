"""How large and how deep a payload may be, and that what no JSON has is refused by name."""

import json
import math
from typing import Any

import dramatiq
import pytest
from dramatiq.message import Message
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from service.errors import DeclarationError, PayloadError, SettingsError
from service.job import job
from service.payload import check_size
from service.payload.limits import MAX_DEPTH
from service.settings import load_settings

KB = 1024


def refusal(function: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(PayloadError) as refused:
        function(*args, **kwargs)
    ((path, problem),) = refused.value.problems
    return path, problem


def row_of(broker, message):
    return broker.row(message, None)


def test_a_payload_over_the_limit_is_refused_with_its_biggest_field_and_the_way_out(broker):
    @job(name="files.take", queue="default")
    def take(*, name: str, content: str) -> None: ...

    row_of(broker, take.message(name="n" * 10 * KB, content="x" * 245 * KB))
    path, problem = refusal(row_of, broker, take.message(name="n" * 10 * KB, content="x" * 247 * KB))
    assert path == "content"
    assert problem == (
        f"has {247 * KB + 2} of the payload's {257 * KB + 26} bytes; the limit is 262144 "
        "(CALLBOARD_MAX_PAYLOAD_BYTES): store the object, and send its name or URL"
    )


def test_the_limit_holds_for_plain_actors_and_for_messages_of_actors_that_are_elsewhere(broker):
    @dramatiq.actor(broker=broker)
    def plain(*texts: str) -> None: ...

    assert refusal(row_of, broker, plain.message("a", "x" * 256 * KB))[0] == "1"
    foreign = Message("default", "elsewhere.take", (), {"text": "x" * 256 * KB}, {})
    assert refusal(row_of, broker, foreign)[0] == "text"


def test_what_is_beside_the_payload_does_not_count(broker):
    message = Message("default", "elsewhere.take", (), {"text": "x" * 255 * KB}, {"traceback": "x" * 64 * KB})
    row_of(broker, message)


def test_what_follows_a_job_may_carry_all_that_is_stored(broker):
    message = Message("default", "elsewhere.tell", ({"kwargs": {"text": "x" * 256 * KB}},), {}, {})
    with broker.insisting():
        row_of(broker, message)
    assert refusal(row_of, broker, message)[0] == "0"


def test_an_actor_and_a_setting_may_say_otherwise(broker, monkeypatch):
    @job(name="files.more", queue="default", max_payload_bytes=300 * KB)
    def more(*, content: str) -> None: ...

    @job(name="files.less", queue="default", max_payload_bytes=100)
    def less(*, content: str) -> None: ...

    @job(name="files.usual", queue="default")
    def usual(*, content: str) -> None: ...

    monkeypatch.setenv("CALLBOARD_MAX_PAYLOAD_BYTES", "2048")
    row_of(broker, more.message(content="x" * 299 * KB))
    assert "the limit is 307200" in refusal(row_of, broker, more.message(content="x" * 300 * KB))[1]
    assert "the limit is 100 " in refusal(row_of, broker, less.message(content="x" * 100))[1]
    assert "the limit is 2048 " in refusal(row_of, broker, usual.message(content="x" * 2048))[1]


@pytest.mark.parametrize("most", [0, -1, 1.5, "1 MB", True])
def test_a_limit_that_can_not_be_one_is_refused_where_the_actor_is_declared(broker, most):
    with pytest.raises(DeclarationError, match=r"files\.take: max_payload_bytes="):

        @job(name="files.take", queue="default", max_payload_bytes=most)
        def take(*, content: str) -> None: ...


def test_a_limit_over_that_of_the_message_would_have_no_effect(monkeypatch):
    monkeypatch.setenv("CALLBOARD_MAX_PAYLOAD_BYTES", str(9 * KB * KB))
    with pytest.raises(SettingsError, match=r"CALLBOARD_MAX_PAYLOAD_BYTES.*CALLBOARD_MAX_MESSAGE_BYTES"):
        load_settings()
    monkeypatch.setenv("CALLBOARD_MAX_MESSAGE_BYTES", str(10 * KB * KB))
    assert load_settings().max_payload_bytes == 9 * KB * KB


@given(st.lists(st.text()), st.dictionaries(st.text(), st.text() | st.lists(st.integers())))
def test_the_size_is_that_of_the_json(args, kwargs):
    size = sum(len(json.dumps(part, separators=(",", ":"))) for part in (args, kwargs))
    check_size("t.act", args, kwargs, size)
    if args or kwargs:
        name, problem = refusal(check_size, "t.act", args, kwargs, size - 1)
        assert f"payload's {size} bytes; the limit is {size - 1} " in problem
        assert name in {*kwargs, *map(str, range(len(args)))}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if levels % 2 else {"a": value}
    return value


class Anything(BaseModel):
    x: Any


@pytest.mark.parametrize("form", ["fields", "model"])
def test_a_payload_may_be_nested_so_deep_and_no_deeper(broker, form):
    @job(name="trees.fields", queue="default")
    def fields(*, x: Any, y: int = 0) -> None: ...

    @job(name="trees.model", queue="default")
    def model(tree: Anything) -> None: ...

    declared = model if form == "model" else fields
    for levels in (MAX_DEPTH - 2, MAX_DEPTH - 1):  # the payload itself is one more
        document = {"x": nested(levels)}
        assert declared.message_from_json(document).kwargs["x"] == document["x"]
        declared.message(Anything(**document)) if form == "model" else declared.message(**document)
    document = {"x": nested(MAX_DEPTH)}
    for send in (
        lambda: declared.message_from_json(document),
        lambda: declared.message(Anything(**document)) if form == "model" else declared.message(**document),
    ):
        path, problem = refusal(send)
        assert path.startswith("x.")
        assert problem == "is nested deeper than 32 levels"


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((1, math.nan), {}, "1"),
        ((), {"a": 1, "ratio": [math.inf]}, "ratio"),
        (({1, 2},), {}, "0"),
        ((), {"at": object()}, "at"),
    ],
)
def test_an_argument_of_a_plain_actor_that_has_no_json_form_is_named(broker, args, kwargs, name):
    @dramatiq.actor(broker=broker)
    def plain(*args: Any, **kwargs: Any) -> None: ...

    assert refusal(row_of, broker, plain.message(*args, **kwargs))[0] == name


def test_an_option_that_has_no_json_form_is_no_fault_of_the_payload(broker):
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        row_of(broker, Message("default", "elsewhere.take", (), {}, {"tags": {1}}))
