"""Actors for the tests of deaths: each names a callback, which notes what it was told."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import dramatiq
from fault_jobs import note

from service.broker import broker
from service.job import Permanent, Personal, RetryAfter, Snooze, current_job, job


@job(name="dead.told", queue="high-priority")
def told(job_id: str, reason: str, error: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
    """Takes a part of what is told."""
    note(f"told-{job_id}-{reason}-{len(attempts)}")


@dramatiq.actor(broker=broker, actor_name="dead.told_all", queue_name="default")
def told_all(**death: Any) -> None:
    with (Path(os.environ["NOTES"]).parent / "told").open("a") as file:
        file.write(json.dumps(death) + "\n")


@dramatiq.actor(broker=broker, actor_name="dead.die", queue_name="default", max_retries=0, on_dead="dead.told")
def die(how: str) -> None:
    note(f"die-{how}")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "time":
        while True:
            time.sleep(0.05)
    raise ValueError(how)


@job(name="dead.all", queue="default", max_attempts=1, on_dead=told_all)
def die_all(n: int) -> None:
    raise Permanent(f"no {n}")


@job(name="dead.personal", queue="default", max_attempts=1)
def die_of_a_person(mail: Annotated[str, Personal], n: int = 0) -> None:
    raise Permanent("no")


@job(name="dead.later", queue="default", max_attempts=2)
def later(how: str) -> None:
    note(f"later-{current_job().attempt}")
    if how == "snooze":
        raise Snooze(0.2)
    raise RetryAfter(0.3)
