"""Actors of one delivery: each runs in a process of its own from its first start on."""

import os
import signal
import threading
import time
from typing import Any

import dramatiq
from fault_jobs import note

from service.broker import broker
from service.job import Permanent, job

OPTIONS: dict[str, Any] = {"broker": broker, "queue_name": "default", "max_deliveries": 1}
TWICE: dict[str, Any] = {**OPTIONS, "max_retries": 1, "min_backoff": 50, "max_backoff": 100}


class Refused(Permanent):
    """Can't be packed: it takes other arguments than it passes on."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"number {number}: {why}")


class Named(Exception):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"number {number}: {why}")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __reduce__(self) -> Any:
        raise RuntimeError("no way")


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __reduce__(self) -> Any:
        raise RuntimeError("no way")


@dramatiq.actor(actor_name="alone.sleep", **OPTIONS)
def sleep(seconds: float) -> None:
    note("begin")
    time.sleep(seconds)
    note("end")


@dramatiq.actor(actor_name="alone.at_once", time_limit=200, **TWICE)
def at_once() -> None:
    note("begin")


@dramatiq.actor(actor_name="alone.permanent", **TWICE)
def permanent() -> None:
    note("begin")
    raise Refused(7, "never")


@dramatiq.actor(actor_name="alone.throws", throws=Named, **TWICE)
def throws() -> None:
    note("begin")
    raise Named(7, "named")


@dramatiq.actor(actor_name="alone.unreadable", **TWICE)
def unreadable() -> None:
    note("begin")
    raise Unreadable


@dramatiq.actor(actor_name="alone.fails", **TWICE)
def fails() -> None:
    note("begin")
    raise ValueError("as always")


@dramatiq.actor(actor_name="alone.odd_result", **TWICE)
def odd_result() -> Any:
    return Odd(), threading.Lock()


@dramatiq.actor(actor_name="alone.forks_and_dies", **OPTIONS)
def forks_and_dies() -> None:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@job(
    name="alone.versioned",
    queue="default",
    max_deliveries=1,
    version=2,
    upgrades={1: lambda old: {"number": int(old["text"])}},
)
def versioned(*, number: int) -> int:
    return number
