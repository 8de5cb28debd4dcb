"""Idempotency keys out of a payload: what a template takes, and that different payloads never share a key."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from service.errors import DeclarationError, PayloadError
from service.payload import KeyTemplate, PayloadContract


class Customer(BaseModel):
    customer_id: int = Field(alias="customerId")
    name: str | None = None


class Order(BaseModel):
    order_id: int = Field(alias="orderId")
    customer: Customer | None = None
    lines: list[int] = []


def send(*, to: str, ref_id: str | None = None, urgent: bool = False, price: Decimal = Decimal("1.10")) -> None: ...


def place(order: Order) -> None: ...


def key_of(template: str, function: Any = send, *args: Any, **payload: Any) -> str | None:
    contract = PayloadContract.of(function, "t.actor")
    return KeyTemplate.of(template, contract).fill(contract.dump(args, payload))


def test_a_key_is_the_text_with_the_fields_in_it() -> None:
    assert key_of("email:{to}:{ref_id}", to="ada@example.org", ref_id="7") == "email:ada@example.org:7"
    assert key_of("{price} {urgent}!", to="a") == "1.10 false!"
    assert key_of("{{{to}}}", to="a") == "{a}"


def test_there_is_no_key_where_a_field_is_missing() -> None:
    assert key_of("email:{to}:{ref_id}", to="ada@example.org") is None
    assert key_of("order:{customer.name}", place, Order(orderId=1)) is None
    assert key_of("order:{customer.name}", place, Order(orderId=1, customer=Customer(customerId=2))) is None


def test_fields_inside_of_models_are_named_as_in_python() -> None:
    order = Order(orderId=1, customer=Customer(customerId=2, name="Ada"))
    assert key_of("order:{order_id}:{customer.customer_id}", place, order) == "order:1:2"


def test_a_value_can_not_pass_for_two() -> None:
    assert key_of("{to}:{ref_id}", to="a:b", ref_id="c:d%") == "a%3Ab:c%3Ad%25"
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC).isoformat()
    assert key_of("sync:{to}", to=when) == f"sync:{when}", "nothing follows it: it stays as it is"


@given(first=st.tuples(st.text(":%3A/é", max_size=5), st.text(":%3A/é", max_size=5)), second=st.data())
def test_different_payloads_have_different_keys(first: tuple[str, str], second: st.DataObject) -> None:
    other = second.draw(st.tuples(st.text(":%3A/é", max_size=5), st.text(":%3A/é", max_size=5)))
    template = KeyTemplate.of("x:{to}:/{ref_id}:", PayloadContract.of(send, "t.actor"))
    keys = [template.fill({"to": to, "ref_id": ref_id}) for to, ref_id in (first, other)]
    assert (keys[0] == keys[1]) == (first == other)


@pytest.mark.parametrize(
    ("template", "function", "problem"),
    [
        ("email:{whom}", send, "'whom' in {whom} is no field of the payload, which has to, ref_id, urgent, price"),
        ("email:{to.name}", send, "'to' in {to.name} has no fields"),
        ("order:{customer.age}", place, "'age' in {customer.age} is no field of the payload, which has customer_id"),
        ("email:{to!r}", send, "takes no format"),
        ("email:{price:.2f}", send, "takes no format"),
        ("email:{to}{ref_id}", send, "a text must stand between two fields"),
        ("email", send, "names no field"),
        ("email:{to", send, "expected '}'"),
        ("email:{}", send, "'' in {} is no field"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(template: str, function: Any, problem: str) -> None:
    with pytest.raises(DeclarationError, match=r"t\.actor: idempotency_key=") as error:
        KeyTemplate.of(template, PayloadContract.of(function, "t.actor"))
    assert problem in str(error.value)


def test_a_list_is_no_part_of_a_key() -> None:
    with pytest.raises(PayloadError, match="lines: is a list or an object"):
        key_of("order:{lines}", place, Order(orderId=1, lines=[1]))
