"""One actor for each queue of the table, which notes when it starts and where, and one that does nothing."""

import os
import time
from pathlib import Path

import dramatiq

from service.broker import broker
from service.queues import QUEUES


def note(word: str, seconds: float = 0.0) -> None:
    # One write to a file opened for appending is whole, whatever else writes.
    file = os.open(Path(os.environ["NOTES"]), os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{word} {os.getpid()} {time.time():.4f}\n".encode())
    os.close(file)
    time.sleep(seconds)


for queue in QUEUES:
    dramatiq.actor(note, broker=broker, actor_name=f"note.{queue}", queue_name=queue)


@dramatiq.actor(broker=broker, actor_name="nap.default", queue_name="default")
def nap(seconds: float = 0.0) -> None:
    if seconds:
        time.sleep(seconds)


@dramatiq.actor(broker=broker, actor_name="fail_once.default", queue_name="default", min_backoff=200, max_backoff=200)
def fail_once(word: str) -> None:
    note(word)
    if Path(os.environ["NOTES"]).read_text().count(f"{word} ") == 1:
        raise ConnectionError("not yet")
