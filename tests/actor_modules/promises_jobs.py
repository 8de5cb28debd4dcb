"""A module as Dramatiq's guide writes them: a middleware with a fork, results in Redis, a class as an actor."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.generic import GenericActor
from dramatiq.middleware import Middleware
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from service.broker import broker


def note(word: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{word}\n")


def beside() -> int:
    note(f"fork {os.getpid()}")
    while True:  # until the command ends it
        time.sleep(0.1)


class Beside(Middleware):
    """Runs something beside the workers, as an exporter of metrics does, and notes how the worker's life goes."""

    @property
    def forks(self) -> list[Any]:
        return [beside]

    def after_process_boot(self, broker: Any) -> None:
        note("process_boot")

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        note("worker_boot")

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        note("worker_shutdown")


broker.add_middleware(Beside())
broker.add_middleware(Results(backend=RedisBackend(url=os.environ["REDIS_URL"])))


class Task(GenericActor):
    class Meta:
        abstract = True
        broker = broker
        store_results = True
        max_deliveries = 1  # each runs in a process of its own


class Greet(Task):
    def perform(self, word: str) -> str:
        return f"hello {word}"


@dramatiq.actor(broker=broker, store_results=True, max_deliveries=1)
async def greet_later(word: str) -> str:
    await asyncio.sleep(0.01)
    return f"bye {word}"


@dramatiq.actor(broker=broker)
def told(message: dict[str, Any], error: dict[str, str]) -> None:
    note(f"told {error['type']}")


@dramatiq.actor(broker=broker, store_results=True, max_deliveries=1, on_failure="told")
def kill_once() -> None:
    note("kill-once")
    os.kill(os.getpid(), signal.SIGKILL)


@dramatiq.actor(broker=broker, store_results=True, max_deliveries=2)
def kill_twice() -> None:
    note("kill-twice")
    os.kill(os.getpid(), signal.SIGKILL)
