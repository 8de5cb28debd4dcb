"""What a user's module may do when it is imported: it connects to Redis, and starts threads that hold locks."""

import importlib
import logging
import os
import sys
import threading
import time
import uuid

import dramatiq
import redis
from fault_jobs import note

from service.broker import broker

client = redis.Redis.from_url(os.environ["REDIS_URL"])
client.ping()

logger = logging.getLogger("import_time_jobs")
logger.propagate = False


class Slow(logging.Handler):
    """Holds its lock for 10 ms for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.01)


def log_for_ever() -> None:
    while True:
        logger.error("x")


def import_for_ever() -> None:
    while True:
        importlib.import_module("colorsys")
        time.sleep(0.005)
        del sys.modules["colorsys"]


logger.addHandler(Slow())
for target in (log_for_ever, import_for_ever):
    threading.Thread(target=target, daemon=True).start()


def exchange() -> None:
    """Fails where another process reads from the same socket."""
    word = uuid.uuid4().hex
    assert client.echo(word) == word.encode()


@dramatiq.actor(broker=broker, actor_name="import.exchange", queue_name="default", max_retries=0)
def exchange_here(word: str) -> None:
    exchange()
    time.sleep(0.05)
    note(f"done-{word}")


@dramatiq.actor(
    broker=broker, actor_name="import.exchange_alone", queue_name="default", max_retries=0, max_deliveries=1
)
def exchange_alone(word: str) -> None:
    exchange()
    note(f"done-{word}")
