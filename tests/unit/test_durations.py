import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.durations import UNITS, seconds_of
from service.errors import DeclarationError


@given(st.integers(1, 10_000), st.sampled_from(sorted(UNITS)))
def test_a_text_is_its_number_of_units(number: int, unit: str) -> None:
    assert seconds_of(f"{number}{unit}", "expires") == number * UNITS[unit]


@given(st.floats(0.001, 1e9))
def test_a_number_is_seconds(number: float) -> None:
    assert seconds_of(number, "expires") == number


def test_a_text_may_have_a_fraction() -> None:
    assert seconds_of("1.5h", "expires") == 5400


WRONG = [0, -1, True, None, float("nan"), float("inf"), "", "1", "h", "1 h", "-1h", "1w", "0s"]


@pytest.mark.parametrize("value", WRONG)
def test_anything_else_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(DeclarationError, match=r"^orders\.take: expires="):
        seconds_of(value, "orders.take: expires")
