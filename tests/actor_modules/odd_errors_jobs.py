"""Actors that raise what can't be rebuilt elsewhere: in the worker's thread, or in a process of their own."""

import os
import socket
import threading
from typing import Any

import dramatiq
from dramatiq.errors import Retry
from fault_jobs import note

from service.broker import broker


class TwoArguments(Exception):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"number {number}: {why}")


class Holds(Exception):
    def __init__(self, thing: Any) -> None:
        super().__init__("holds something")
        self.thing = thing


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NoWayOut(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("no way")


class AnswersNothing(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class BecomesAnother(Exception):
    def __reduce__(self) -> Any:
        return dict, ()


class OnlyInTheChild(Exception):
    """Is found by its name only where `alone` has run."""

    def __reduce__(self) -> Any:
        return _rebuilt, (os.getpid(),)


def _rebuilt(process: int) -> OnlyInTheChild:
    if process != os.getpid():
        raise ImportError("not here")
    return OnlyInTheChild("made there")


def local() -> Exception:
    class Local(Exception):
        pass

    return Local("only here")


def cyclic() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


ERRORS: dict[str, Any] = {
    "TwoArguments": lambda: TwoArguments(7, "never"),
    "Local": local,
    "Holds": lambda: Holds(threading.Lock()),
    "Holds a socket": lambda: Holds(socket.socket()),
    "NoText": NoText,
    "NoWayOut": lambda: NoWayOut("in"),
    "AnswersNothing": lambda: AnswersNothing("at all"),
    "BecomesAnother": lambda: BecomesAnother("thing"),
    "OnlyInTheChild": lambda: OnlyInTheChild("made there"),
    "ValueError of 50 MB": lambda: ValueError("é" * 50_000_000),
    "ValueError in a circle": cyclic,
}


def _raise(kind: str, *, as_reason: bool) -> None:
    note(f"{kind}: {os.getpid()}")
    if as_reason:
        raise Retry("on purpose", delay=1) from ERRORS[kind]()
    raise ERRORS[kind]()


OPTIONS: dict[str, Any] = {"broker": broker, "max_retries": 1, "min_backoff": 1, "max_backoff": 1}


@dramatiq.actor(actor_name="odd.beside", **OPTIONS)
def beside(kind: str, as_reason: bool) -> None:
    _raise(kind, as_reason=as_reason)


@dramatiq.actor(actor_name="odd.alone", max_deliveries=1, **OPTIONS)
def alone(kind: str, as_reason: bool) -> None:
    _raise(kind, as_reason=as_reason)


@dramatiq.actor(actor_name="odd.next", **OPTIONS)
def next_job() -> int:
    return os.getpid()
