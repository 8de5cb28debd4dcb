"""What was read from JSON and is dumped as that JSON is not read once more; everything else is."""

import dataclasses
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, JsonValue, model_validator

from service.errors import PayloadError
from service.payload import PayloadContract
from service.payload.rereads import Rereads


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    number: int
    ratio: float = 0.5
    price: Decimal = Decimal("1.10")
    at: datetime | None = None
    kind: Literal["a", 1, True] = "a"
    either: int | str | bool = 7
    lines: list[Line] = []
    anything: JsonValue = None
    doubled: Annotated[int, AfterValidator(lambda value: value * 2)] = Field(default=0, alias="twice")


def contract_of(model: type[BaseModel]) -> PayloadContract:
    def actor(payload: Any) -> None: ...

    actor.__annotations__["payload"] = model
    return PayloadContract.of(actor, "test.actor")


def outcome(contract: PayloadContract, document: Any) -> Any:
    try:
        return repr(contract.parse(document))
    except PayloadError as error:
        return str(error)


SHORT = contract_of(Order)
LONG = dataclasses.replace(SHORT, rereads=Rereads(None))

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, 1.0, "1.10", "a", "2024-05-01T00:00:00Z"])
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
lines = st.fixed_dictionaries({"sku": leaves}, optional={"count": leaves})
documents = st.fixed_dictionaries(
    {"number": leaves},
    optional=dict.fromkeys(("ratio", "price", "at", "kind", "either", "twice", "doubled"), leaves)
    | {"lines": st.lists(lines, max_size=2), "anything": values},
)


@given(st.lists(documents, min_size=1, max_size=4))
def test_the_short_way_says_what_the_long_way_does(several: list[Any]) -> None:
    for document in several:
        assert outcome(SHORT, document) == outcome(LONG, document)


def count_reads(contract: PayloadContract, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    reads: list[Any] = []
    read = PayloadContract._read
    monkeypatch.setattr(PayloadContract, "_read", lambda self, document: reads.append(document) or read(self, document))
    return reads


def test_what_was_left_out_is_read_again_until_it_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = contract_of(Order)
    reads = count_reads(contract, monkeypatch)
    for _ in range(3):
        contract.parse({"number": 1})
    assert len(reads) == 1
    contract.parse({"number": 2, "ratio": 1.5})
    assert len(reads) == 1
    contract.parse({"number": True})  # dumped as 1
    assert len(reads) == 2


def test_a_value_that_changes_when_it_is_read_is_refused_each_time() -> None:
    contract = contract_of(Order)
    for _ in range(2):
        with pytest.raises(PayloadError, match="twice"):
            contract.parse({"number": 1, "twice": 3})


def test_a_model_that_decides_as_a_whole_is_always_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(BaseModel):
        a: int
        b: int = 0

        @model_validator(mode="after")
        def _b_follows(self) -> "Whole":
            return self

    contract = contract_of(Whole)
    reads = count_reads(contract, monkeypatch)
    for _ in range(3):
        contract.parse({"a": 1, "b": 2})
    assert len(reads) == 3
