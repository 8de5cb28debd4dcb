"""Actors that get what somebody else's program has written."""

import time
from typing import Any

import dramatiq
from fault_jobs import note

from service.broker import broker
from service.job import job


@dramatiq.actor(broker=broker, actor_name="badmsg.good", queue_name="default")
def good(word: str, **rest: Any) -> None:
    note(f"good-{ascii(word)[1:-1]}")


@dramatiq.actor(broker=broker, actor_name="badmsg.strict", queue_name="default")
def strict(n: int, *, flag: bool = False) -> None:
    note("strict")


@dramatiq.actor(broker=broker, actor_name="badmsg.async", queue_name="default")
async def strict_async(n: int) -> None:
    note("async")


@job(name="badmsg.job", queue="default")
def checked(*, n: int) -> None:
    note("checked")


@dramatiq.actor(
    broker=broker, actor_name="badmsg.broken", queue_name="default", max_retries=2, min_backoff=20, max_backoff=50
)
def broken(n: int) -> None:
    note("broken")
    raise TypeError("unsupported operand")


@dramatiq.actor(broker=broker, actor_name="badmsg.slow_failure", queue_name="default", min_backoff=20, max_backoff=50)
def slow_failure() -> None:
    note("failing")
    time.sleep(1)
    raise ValueError("no")
