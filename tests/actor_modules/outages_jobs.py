"""Actors for the tests of outages: they fail at a known attempt, and note each start and end."""

import time

import dramatiq
from fault_jobs import note

from service.broker import broker
from service.job import current_job
from service.schedules import Every, Schedule


@dramatiq.actor(broker=broker, actor_name="outage.fail_once", queue_name="default", min_backoff=50, max_backoff=100)
def fail_once(word: str, seconds: float = 0.0) -> None:
    attempt = current_job().attempt
    note(f"attempt-{attempt}-{word}")
    time.sleep(seconds)
    if attempt == 1:
        raise ConnectionError(word)


@dramatiq.actor(broker=broker, actor_name="outage.die", queue_name="default", max_retries=0)
def die(word: str) -> None:
    note(f"die-{word}")
    raise ValueError(word)


@dramatiq.actor(broker=broker, actor_name="outage.tick", queue_name="default")
def tick() -> None:
    note("tick")


SCHEDULES = (Schedule("each-second", actor="outage.tick", when=Every(1)),)
