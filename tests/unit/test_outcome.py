import itertools
import json
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broker.outcome import (
    MAX_MESSAGE_CHARACTERS,
    MAX_RESULT_BYTES,
    MAX_TRACEBACK_CHARACTERS,
    MAX_TYPE_CHARACTERS,
    Failure,
    storable,
    succeeded,
)


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - KeyboardInterrupt is one of them
        return caught


def check(failure):
    """Bounded, and JSON that PostgreSQL's jsonb takes: no NUL, no half of a surrogate pair."""
    assert len(failure.type) <= MAX_TYPE_CHARACTERS
    assert len(failure.message) <= MAX_MESSAGE_CHARACTERS
    assert len(failure.traceback) <= MAX_TRACEBACK_CHARACTERS
    return check_json(failure.to_json())


def check_json(text):
    text.encode()
    assert "\x00" not in text
    value = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    for found in texts_in(value):
        assert "\x00" not in found
        found.encode()  # half of a surrogate pair has no UTF-8
    return value


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(texts_in, [*value, *value.values()]))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(texts_in, value))


class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one)


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitsWhenRead(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


class HoldsALock(Exception):
    def __init__(self):
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("can't be packed")


class TextThatIsNone(Exception):
    def __str__(self):
        return None  # type: ignore[return-value]  # noqa: PLE0307 - that is its fault


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__module__", "__qualname__", "__name__"):
            raise RuntimeError("nameless")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


def local_class():
    class Local(Exception):
        pass

    return Local("inside")


def cause_cycle():
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def long_chain():
    error = ValueError(0)
    for number in range(3000):
        later = ValueError(number)
        later.__cause__ = error
        error = later
    return error


ODD = [
    NeedsTwo("a", "b"),
    Unreadable(),
    ExitsWhenRead(),
    HoldsALock(),
    TextThatIsNone(),
    Nameless(),
    local_class(),
    cause_cycle(),
    long_chain(),
    ValueError("x" * 50_000_000),
    ValueError("nul \x00 and \ud800 half"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
    ExceptionGroup("many", [ValueError(number) for number in range(1000)]),
    SyntaxError("bad", ("file\x00name", 1, 1, "text\ud800", 1, 2)),
    KeyboardInterrupt(),
    type("E" * 100_000, (Exception,), {})("long name"),
    type("E", (Exception,), {"__module__": None})("no module"),
]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type.__dict__["__name__"].__get__(type(error))[:20])
def test_any_exception_is_described_in_bounded_storable_text(error):
    started = time.monotonic()
    document = check(Failure.of(raised(error)))
    assert document["type"]
    assert time.monotonic() - started < 5


def test_a_failure_names_type_message_and_the_innermost_line():
    def dive(depth):
        if depth:
            dive_again(depth - 1)
        raise ValueError("the bottom")

    def dive_again(depth):
        dive(depth)

    try:
        dive(100)
    except ValueError as error:
        failure = Failure.of(error)
    assert (failure.type, failure.message) == ("ValueError", "the bottom")
    assert 'raise ValueError("the bottom")' in failure.traceback
    assert failure.traceback.endswith("ValueError: the bottom\n")


def test_a_cut_message_keeps_its_beginning_and_a_cut_traceback_its_end():
    failure = Failure.of(raised(ValueError("start" + "x" * 200_000 + "end")))
    assert failure.message.startswith("start")
    assert failure.traceback.endswith("end\n")


def test_a_class_is_named_with_its_module_and_place():
    assert Failure.of(local_class()).type.endswith("local_class.<locals>.Local")
    assert Failure.of(NeedsTwo("a", "b")).type.endswith(".NeedsTwo")


@given(st.text(st.characters(blacklist_categories=())))
def test_any_message_is_storable(text):
    assert check(Failure.of(ValueError(text)))["message"] == storable(text)[:MAX_MESSAGE_CHARACTERS]


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")))
def test_what_can_be_stored_is_left_as_it_is(text):
    assert storable(text) == text


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(blacklist_categories=()))
    | st.binary()
    | st.uuids()
    | st.decimals()
    | st.datetimes(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters(blacklist_categories=())) | st.integers(), inner)
    ),
)


@given(values)
def test_any_result_becomes_storable_json(value):
    check_json(succeeded(value).result)


@dataclass
class Receipt:
    number: UUID
    price: Decimal
    at: datetime


def test_a_usual_result_is_kept_as_it_is():
    receipt = Receipt(UUID(int=1), Decimal("1.10"), datetime(2024, 1, 1, tzinfo=UTC))
    assert json.loads(succeeded(receipt).result) == {
        "number": "00000000-0000-0000-0000-000000000001",
        "price": "1.10",
        "at": "2024-01-01T00:00:00Z",
    }
    assert succeeded(None).result == "null"
    assert list(json.loads(succeeded({"b": 1, "a": 2}).result)) == ["b", "a"]


class ReprRaises:
    def __repr__(self):
        raise SystemExit(3)


class SerializerRaises(dict):
    def items(self):
        raise RuntimeError("no items")


def cyclic():
    value = []
    value.append(value)
    return value


def deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


def endless():
    while True:
        yield 1


@pytest.mark.parametrize(
    "make",
    [
        object,
        ReprRaises,
        SerializerRaises,
        threading.Lock,
        cyclic,
        deep,
        endless,
        lambda: [ReprRaises()],
        lambda: {1: ReprRaises(), (1, 2): 3, None: 4},
        lambda: "\x00",
        lambda: {"a\x00": ["\x00", {"\x00": "\\u0000"}]},
        lambda: "\ud800",
        lambda: {"a": ["\ud800"]},
        lambda: {"\udfff": 1},
        lambda: b"\xff\x00",
        lambda: [float("nan"), float("inf"), -float("inf"), Decimal("nan")],
        lambda: 10**5000,
        lambda: {"a": [10**5000]},
        lambda: "x" * 10_000_000,
        lambda: ["\x00" * 1000] * 1000,
        lambda: [cyclic] * 100_000,
    ],
)
def test_an_odd_result_never_undoes_a_success(make):
    started = time.monotonic()
    result = succeeded(make()).result
    check_json(result)
    assert len(result.encode()) <= 2 * MAX_RESULT_BYTES
    assert time.monotonic() - started < 5


def test_a_result_over_the_limit_says_so():
    assert "the limit is 262144" in succeeded("x" * MAX_RESULT_BYTES).result
    assert succeeded("x" * (MAX_RESULT_BYTES - 2)).result == json.dumps("x" * (MAX_RESULT_BYTES - 2))


def test_a_long_number_that_python_reads_back_is_kept():
    assert json.loads(succeeded(10**4000).result) == 10**4000
