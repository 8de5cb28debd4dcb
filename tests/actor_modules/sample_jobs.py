"""Actors that the end-to-end tests run in real workers. Each writes what it does to a file: runs can be counted."""

import os
import time
from pathlib import Path

import dramatiq

from service.broker import broker
from service.job import Backoff, current_job, job


def _note(word: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{word}\n")


@job(name="sample.note", queue="default")
def note(*, word: str) -> dict[str, str]:
    _note(word)
    return {"noted": word}


@job(name="sample.slow", queue="default")
def slow(*, word: str, seconds: float) -> None:
    _note(f"start {word}")
    time.sleep(seconds)
    _note(f"end {word}")


@job(name="sample.flaky", queue="default", max_attempts=3, backoff=Backoff(delay_seconds=0.2, cap_seconds=1))
def flaky(*, succeeds_at: int) -> int:
    attempt = current_job().attempt
    _note(f"attempt {attempt}")
    if attempt < succeeds_at:
        raise ConnectionError("not yet")
    return attempt


@dramatiq.actor(broker=broker, queue_name="default")
def plain(word: str) -> str:
    _note(word)
    return word
