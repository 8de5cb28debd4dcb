"""Each type arrives equal in type and value on every path, or is refused where it is sent: one rule for all paths.

The paths: a direct call, a real worker, the attempt after a failed one, and the fixture for users' tests.
"""

import enum
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import dramatiq
import pytest
from dramatiq.worker import Worker
from pydantic import BaseModel

from service.broker import RedisBroker
from service.errors import DeclarationError, PayloadError
from service.job import Job
from service.middleware.context import current_job_or_none
from service.testing import Callboard
from tests.protocol.test_worker import end_of


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    ANN = "ann"


class Text(str):
    __slots__ = ()


@dataclass
class Size:
    width: Decimal
    at: date


class Model(BaseModel):
    ids: set[UUID]


HELSINKI = ZoneInfo("Europe/Helsinki")

ARRIVE: list[tuple[Any, Any]] = [
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (date, date(2024, 2, 29)),
    (datetime, datetime(2024, 2, 29, 12, 30)),
    (datetime, datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
    (datetime, datetime(2017, 10, 29, 3, 30, fold=0, tzinfo=HELSINKI)),
    (datetime, datetime(2017, 10, 29, 3, 30, fold=1, tzinfo=HELSINKI)),
    (time, time(12, 30, 1, 5)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2}),
    (frozenset[UUID], frozenset({UUID(int=1)})),
    (tuple[int, str], (1, "a")),
    (tuple[Decimal, ...], (Decimal("0.10"),)),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Name, Name.ANN),
    (Size, Size(Decimal("1.0"), date(2024, 1, 1))),
    (Model, Model(ids={UUID(int=1)})),
    (dict[int, str], {1: "one"}),
    (dict[UUID, list[date]], {UUID(int=1): [date(2024, 1, 1)]}),
    (list[bytes], [b"\xff"]),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (float, math.nan, "x"),
    (float, math.inf, "x"),
    (list[float], [0.0, -math.inf], "x.1"),
    (Decimal, Decimal("NaN"), "x"),
    (bytes, bytearray(b"ab"), "x"),
    (list[bytes], [b"a", bytearray(b"b")], "x.1"),
    (str, Text("ab"), "x"),
    (str, Name.ANN, "x"),
    (int, Level.HIGH, "x"),
    (dict[str, str], {"a": Text("b")}, "x.a"),
    (dict[str, int], OrderedDict(a=1), "x"),
    (list[int], (1, 2), "x"),
    (list[int], {1, 2}, "x"),
    (tuple[str, ...], (Text("a"),), "x.0"),
    (date, datetime(2024, 1, 1), "x"),
    (Any, UUID(int=1), "x"),
    (Any, Decimal("1.1"), "x"),
    (Any, date(2024, 1, 1), "x"),
    (Any, {"a": (1, 2)}, "x.a"),
    (Any, {1: "a"}, "x.1"),
    (dict[str, Any], {"a": Colour.RED}, "x.a"),
]


def declare(broker: RedisBroker, name: str, annotation: Any, body: Callable[[Any], Any]) -> Any:
    # A second parameter, since one that is a model would be the payload itself.
    def take(*, x, note=None):
        return body(x)

    take.__annotations__ = {"x": annotation, "note": None}
    return dramatiq.actor(
        take, broker=broker, actor_class=Job, actor_name=name, max_retries=1, min_backoff=1, max_backoff=1
    )


def same(arrived: Any, sent: Any) -> bool:
    if type(arrived) is not type(sent):
        return False
    if isinstance(sent, datetime) and sent.tzinfo:
        # The offset is kept, its zone's name is not.
        return (arrived.timestamp(), arrived.utcoffset()) == (sent.timestamp(), sent.utcoffset())
    if isinstance(sent, dict):
        return all(same(*pair) for pair in zip([*arrived, *arrived.values()], [*sent, *sent.values()], strict=True))
    if isinstance(sent, list | tuple):
        return len(arrived) == len(sent) and all(map(same, arrived, sent))
    return arrived == sent


def fails_first(seen: dict[str, list[Any]]) -> Callable[[Any], Any]:
    def body(value: Any) -> Any:
        context = current_job_or_none()
        assert context
        seen.setdefault(context.actor, []).append(value)
        if context.attempt == 1:
            raise ConnectionError("once more")
        return value

    return body


def not_the_same(seen: dict[str, list[Any]]) -> list[str]:
    """What did not arrive twice, equal both times."""
    wrong: list[str] = []
    for index, (annotation, value) in enumerate(ARRIVE):
        found = seen.get(f"types.{index}", [])
        if len(found) != 2 or not all(same(each, value) for each in found):
            wrong.append(f"{annotation}: {value!r} came as {found!r}")
    return wrong


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_in_a_worker_each_arrives_equal_at_first_and_after_a_retry_and_its_result_is_json(
    broker: RedisBroker, start_worker: Callable[..., Worker]
) -> None:
    seen: dict[str, list[Any]] = {}
    actors = [
        declare(broker, f"types.{index}", annotation, fails_first(seen)) for index, (annotation, _) in enumerate(ARRIVE)
    ]
    start_worker()
    messages = [actor.send(x=value) for actor, (_, value) in zip(actors, ARRIVE, strict=True)]
    for message in messages:
        end = end_of(broker, message)
        assert (end.state, end.attempt) == ("succeeded", 2)
        record = broker.find_record(message.message_id) or {}
        assert json.loads(record["result"], parse_constant=no_constant) == end.result
    assert not_the_same(seen) == []


def test_in_a_users_test_it_is_the_same(broker: RedisBroker) -> None:
    seen: dict[str, list[Any]] = {}
    with Callboard.on(broker) as callboard:
        for index, (annotation, value) in enumerate(ARRIVE):
            actor = declare(broker, f"types.{index}", annotation, fails_first(seen))
            actor.send(x=value)
            assert same(callboard.assert_enqueued(actor).payload["x"], value)
        runs = callboard.drain(wait=True)
    assert [run.state for run in runs].count("succeeded") == len(ARRIVE)
    assert not_the_same(seen) == []


def test_inline_and_in_a_direct_call_it_is_the_same(broker: RedisBroker) -> None:
    with Callboard.on(broker) as callboard, callboard.inline():
        for index, (annotation, value) in enumerate(ARRIVE):
            seen: list[Any] = []
            actor = declare(broker, f"types.{index}", annotation, seen.append)
            actor(x=value)
            actor.send(x=value)
            assert same(seen[0], value)
            assert same(seen[1], value), f"{annotation}: {value!r} came as {seen[1]!r}"


@pytest.mark.parametrize(("annotation", "value", "path"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_would_change_is_refused_with_its_argument(
    broker: RedisBroker, annotation: Any, value: Any, path: str
) -> None:
    seen: list[Any] = []
    actor = declare(broker, "types.refused", annotation, seen.append)
    for where in (nullcontext(), Callboard.on(broker)):
        with where, pytest.raises(PayloadError) as refused:
            actor.send(x=value)
        assert [each for each, _ in refused.value.problems] == [path]
    assert seen == []
    assert broker.wire.backlog("default") == 0


def test_plain_json_is_read_as_the_fields_type_says(broker: RedisBroker) -> None:
    seen: list[Any] = []
    with Callboard.on(broker) as callboard, callboard.inline():
        declare(broker, "types.uuid", UUID, seen.append).send(x=str(UUID(int=1)))
        declare(broker, "types.size", Size, seen.append).send(x={"width": "1.0", "at": "2024-01-01"})
        declare(broker, "types.days", list[date], seen.append).send(x=["2024-01-01"])
    assert seen == [UUID(int=1), Size(Decimal("1.0"), date(2024, 1, 1)), [date(2024, 1, 1)]]


def test_a_type_that_never_arrives_is_refused_where_the_actor_is_declared(broker: RedisBroker) -> None:
    for annotation in (bytearray, memoryview, Text):
        with pytest.raises(DeclarationError, match="can't be sent as JSON"):
            declare(broker, "types.never", annotation, print)


@pytest.mark.parametrize(
    "value", [UUID(int=1), Decimal("1.1"), date(2024, 1, 1), b"a", {1}, Colour.RED, math.nan, math.inf], ids=str
)
def test_a_plain_actors_argument_without_a_json_form_is_refused_by_its_name(broker: RedisBroker, value: Any) -> None:
    @dramatiq.actor(broker=broker)
    def plain(a: Any, b: Any = None) -> None: ...

    for send, name in ((lambda: plain.send(1, [value]), "1"), (lambda: plain.send(a=1, b={"c": value}), "b")):
        with pytest.raises(PayloadError) as refused:
            send()
        assert [each for each, _ in refused.value.problems] == [name]
    assert broker.wire.backlog("default") == 0
