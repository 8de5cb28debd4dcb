"""Actors for the compatibility corpus: each returns what it was given, as text.

Messages for them are stored in files and run by later releases: names, parameters and types stay as they are. Add an
actor where a new kind of payload comes, and write the corpus of the release that brings it.
"""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import dramatiq
from pydantic import BaseModel, Field

from service.broker import broker
from service.job import current_job, job


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    article: UUID
    price: Decimal = Decimal("0.10")
    colours: list[Colour] = []


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    lines: list[Line]
    placed_at: datetime
    note: str | None = None


def _told(value: Any) -> str:
    # Type and value; of a time zone only its offset, for which each library has a class of its own.
    return f"{type(value).__name__} {value.isoformat()}" if isinstance(value, datetime) else repr(value)


@job(name="compat.typed", queue="default", aliases=("typed-compat",))
def typed(
    *,
    text: str,
    number: int,
    fraction: float,
    flag: bool,
    nothing: None,
    key: UUID,
    moment: datetime,
    local: datetime,
    day: date,
    clock: time,
    span: timedelta,
    amount: Decimal,
    colour: Colour,
    raw: bytes,
    word: Literal["a", "b"],
    items: list[int],
    pair: tuple[int, str],
    names: set[str],
    table: dict[str, Decimal],
    maybe: UUID | None,
    anything: Any,
    line: Line,
    default: int = 7,
) -> dict[str, str]:
    return {name: _told(value) for name, value in locals().items()}


@job(name="compat.order", queue="default")
def order(payload: Order) -> dict[str, str]:
    return {name: _told(value) for name, value in payload}


@job(name="compat.attempt", queue="default")
def attempt() -> int:
    return current_job().attempt


@dramatiq.actor(broker=broker, actor_name="compat.plain")
def plain(*args: Any, **kwargs: Any) -> str:
    return repr((args, kwargs))
