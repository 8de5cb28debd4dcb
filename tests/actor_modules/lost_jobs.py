"""Actors for the tests of a lost Redis: they note each start and end with their word."""

import time

import dramatiq
from fault_jobs import note

from service.broker import broker


@dramatiq.actor(broker=broker, actor_name="lost.work", queue_name="default")
def work(word: str, seconds: float = 0.02) -> str:
    note(f"start-{word}")
    time.sleep(seconds)
    note(f"end-{word}")
    return word


@dramatiq.actor(broker=broker, actor_name="lost.dies", queue_name="default", max_retries=0)
def dies(word: str) -> None:
    note(f"dies-{word}")
    raise ValueError(word)


@dramatiq.actor(broker=broker, actor_name="lost.mends", queue_name="email", min_backoff=4000, max_backoff=5000)
def mends(word: str) -> str:
    note(f"tries-{word}")
    from dramatiq.middleware import CurrentMessage

    message = CurrentMessage.get_current_message()
    if message is not None and not message.options.get("retries"):
        raise ValueError(word)
    note(f"end-{word}")
    return word
