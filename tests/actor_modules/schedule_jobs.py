"""Actors and schedules of the tests with real schedulers: each job notes the due time that it is for."""

import os
from pathlib import Path

from service.job import Backoff, current_job, job
from service.schedules import Cron, Every, Schedule


def _note(word: str) -> None:
    job = current_job()
    due = job.scheduled_for.isoformat() if job.scheduled_for else "-"
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{word} {job.schedule} {due} {job.tenant or '-'}\n")


@job(name="schedule.note", queue="default")
def note(*, word: str = "ran") -> None:
    _note(word)


@job(name="schedule.fail", queue="default", max_attempts=1)
def fail() -> None:
    _note("failed")
    raise ValueError("as it always does")


@job(name="schedule.fail_twice", queue="default", max_attempts=2, backoff=Backoff(delay_seconds=0.5, cap_seconds=0.6))
def fail_twice() -> None:
    _note("failed")
    raise ConnectionError("as it always does")


@job(name="schedule.alone", queue="default", isolation="process")
def alone() -> None:
    _note("alone")


SCHEDULES = (
    Schedule("each-second", actor="schedule.note", when=Every(1), missed="all", most=1000),
    Schedule("failing", actor="schedule.fail", when=Every(1), missed="skip", pause_after_failures=3),
)
ONE = (Schedule("each-second", actor="schedule.note", when=Every(1), missed="all", most=1000),)
NONE = ()
MONITORED = (
    Schedule("good", actor="schedule.note", when=Cron("* * * * *", "Europe/Berlin")),
    Schedule("bad", actor="schedule.fail_twice", when=Cron("* * * * *", "Europe/Berlin")),
)
