"""Personal data: what is masked where a payload is shown, and that no error shows it either."""

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import dramatiq
import pytest
from dramatiq.message import Message
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, RootModel, create_model, field_validator, model_validator
from typing_extensions import TypedDict

from service.broker.delivery import Delivery, Lease
from service.errors import PayloadError
from service.job import Personal, job
from service.payload import PayloadContract, masked

Email = Annotated[str, Personal]
SECRET = "ada@example.org"


class Address(BaseModel):
    street: Annotated[str, Personal]
    country: str = "FI"


class Customer(BaseModel):
    mail: Annotated[str, Field(max_length=20), Personal] = Field(alias="e-mail")
    home: Annotated[Address, Personal] | None = None
    work: Address | None = None


class Row(TypedDict):
    mail: Email
    n: int


class Pair(NamedTuple):
    n: int
    mail: Email


@dataclass
class Card:
    number: Annotated[str, Personal]
    year: int


class Node(BaseModel):
    name: Email
    size: int
    children: list["Node"] = []


class Colour(enum.Enum):
    RED = "red"


Emails = RootModel[list[Email]]


def contract_for(annotation: Any) -> PayloadContract:
    def take(*, x, note=None): ...

    take.__annotations__ = {"x": annotation, "note": None}
    return PayloadContract.of(take, "t.act")


class _Actor:
    def __init__(self, contract: PayloadContract) -> None:
        self.contract = contract


def shown(annotation: Any, value: Any) -> Any:
    return masked(_Actor(contract_for(annotation)), {"x": value, "note": None})["x"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (str, "text", "text"),
        (Email, SECRET, "***"),
        (Annotated[int, Personal()], 7, "***"),
        (Email | None, SECRET, "***"),
        (Email | None, None, None),
        (list[Email], [SECRET, SECRET], ["***", "***"]),
        (Annotated[list[str], Personal], [SECRET], "***"),
        (tuple[int, Email], [1, SECRET], [1, "***"]),
        (tuple[Email, ...], [SECRET], ["***"]),
        (set[Email], [SECRET], ["***"]),
        (dict[str, Email], {"a": SECRET}, {"a": "***"}),
        (dict[Email, int], {SECRET: 1}, "***"),
        (dict[str, list[Address]], {"a": [{"street": "S", "n": 1}]}, {"a": [{"street": "***", "n": "***"}]}),
        (
            Customer,
            {"e-mail": SECRET, "home": {"street": "S"}, "work": {"street": "S", "country": "SE"}},
            {"e-mail": "***", "home": "***", "work": {"street": "***", "country": "SE"}},
        ),
        (Customer, {"mail": SECRET}, {"mail": "***"}),
        (Row, {"mail": SECRET, "n": 1}, {"mail": "***", "n": 1}),
        (Pair, [1, SECRET], [1, "***"]),
        (Card, {"number": "4111", "year": 30}, {"number": "***", "year": 30}),
        (Emails, [SECRET], ["***"]),
        (Node, {"name": "A", "size": 1, "children": [{"name": "B", "size": 2}]},
         {"name": "***", "size": 1, "children": [{"name": "***", "size": 2}]}),
        (Address | int, 7, 7),
        (Address | Card, {"number": "4111", "year": 30}, {"number": "***", "year": 30}),
        # In doubt: of another shape, or under a name that no field has.
        (Address, {"street": "S", "strete": "S 1"}, {"street": "***", "strete": "***"}),
        (Address, "S 1", "***"),
        (list[Email], SECRET, "***"),
        (list[Address], {"0": {"street": "S"}}, {"0": "***"}),
        (Address | None, "S 1", "***"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_marked_is_masked_and_the_rest_is_shown(annotation, value, expected):
    assert shown(annotation, value) == expected


hints = st.recursive(
    st.sampled_from([(Email, st.just(SECRET)), (int, st.integers()), (Address, st.just({"street": SECRET}))]),
    lambda inner: st.one_of(
        inner.map(lambda pair: (list[pair[0]], st.lists(pair[1], max_size=3))),
        inner.map(lambda pair: (dict[str, pair[0]], st.dictionaries(st.sampled_from("abc"), pair[1], max_size=3))),
        inner.map(lambda pair: (pair[0] | None, pair[1])),
        inner.map(lambda pair: (create_model("Inner", f=(pair[0], ...)), pair[1].map(lambda value: {"f": value}))),
    ),
    max_leaves=6,
)


@given(hints, st.data())
def test_no_marked_value_is_shown_wherever_it_lies(hint, data):
    annotation, values = hint
    value = data.draw(values)
    assert SECRET not in str(shown(annotation, value))
    if annotation is int or SECRET not in str(value):
        assert shown(annotation, value) == value


def test_a_plain_actor_is_masked_by_its_annotations_and_an_unknown_one_wholly(broker):
    @dramatiq.actor(broker=broker)
    def plain(to: Email, subject: str) -> None: ...

    @dramatiq.actor(broker=broker)
    def open_(a: int) -> None: ...

    assert masked(plain, {"to": SECRET, "subject": "Hi", "more": 1}) == {"to": "***", "subject": "Hi", "more": "***"}
    assert masked(open_, {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert masked(None, {"to": SECRET}) == {"to": "***"}


def test_a_typed_actor_is_masked_in_both_forms(broker):
    @job(name="mail.fields", queue="default")
    def fields(*, to: Email, subject: str) -> None: ...

    @job(name="mail.model", queue="default")
    def model(customer: Customer) -> None: ...

    message = fields.message(to=SECRET, subject="Hi")
    assert message.kwargs == {"to": SECRET, "subject": "Hi"}
    assert masked(fields, message.kwargs) == {"to": "***", "subject": "Hi"}
    assert masked(model, {"e-mail": SECRET}) == {"e-mail": "***"}


def shout(value: str) -> str:
    raise ValueError(f"{value!r} and {value.upper()!r} are no addresses")


class Strict(BaseModel):
    mail: Annotated[str, AfterValidator(shout), Personal]


class Checked(BaseModel):
    mail: Email
    copies: list[Email] = []
    n: int = 0

    @model_validator(mode="after")
    def _together(self) -> "Checked":
        raise ValueError(f"{self.mail} and {self.copies} with n={self.n} do not go together")


class Choice(BaseModel):
    kind: Annotated[Literal["a", "b"], Personal]
    colour: Annotated[Colour, Personal] = Colour.RED


class Shows(BaseModel):
    subject: str
    mail: Email

    @field_validator("subject")
    @classmethod
    def _shown(cls, value: str) -> str:
        raise ValueError(f"the subject {value!r} is taken")


@pytest.mark.parametrize(
    ("annotation", "value", "paths"),
    [
        (Strict, {"mail": SECRET}, ["x.mail"]),
        (list[Strict], [{"mail": SECRET}], ["x.0.mail"]),
        (dict[str, Strict] | int, {"k": {"mail": SECRET}}, None),
        (Checked, {"mail": SECRET, "copies": [SECRET, "bob@example.org"], "n": 3}, ["x"]),
        (Choice, {"kind": SECRET, "colour": SECRET}, ["x.kind", "x.colour"]),
        (Annotated[Strict, Personal], {"mail": SECRET}, ["x.mail"]),
        (Annotated[int, Personal], SECRET, ["x"]),
        (Annotated[int, Personal] | None, SECRET, ["x"]),
        (Customer, {"e-mail": SECRET * 3}, ["x.e-mail"]),
    ],
    ids=str,
)
def test_no_error_shows_a_marked_value(annotation, value, paths):
    contract = contract_for(annotation)
    refusals = []
    for refuse in (
        lambda: contract.parse({"x": value}),
        lambda: contract.dump((), {"x": value}),
        lambda: contract.load((), {"x": value}),
    ):
        with pytest.raises(PayloadError) as refused:
            refuse()
        refusals.append(refused.value)
    for error in refusals:
        for secret in (SECRET, SECRET.upper(), "bob@"):
            assert secret not in str(error)
        if paths:
            assert [path for path, _ in error.problems] == paths


def test_an_error_of_a_field_that_is_not_marked_says_what_is_wrong():
    with pytest.raises(PayloadError, match=r"x\.subject: the subject 'Hi' is taken"):
        contract_for(Shows).parse({"x": {"subject": "Hi", "mail": SECRET}})
    with pytest.raises(PayloadError, match=r"do not go together"):
        contract_for(Checked).parse({"x": {"mail": SECRET, "n": 3}})


def test_a_delivery_in_a_log_line_shows_no_payload():
    message = Message("default", "mail.send", (SECRET,), {"to": SECRET}, {})
    lease = Lease("default", message.message_id, "1", 1, 1, 1, 0, 3)
    for text in (str(Delivery(message, lease)), repr(Delivery(message, lease))):
        assert text == f"mail.send {message.message_id}"
