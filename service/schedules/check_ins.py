"""Tells Sentry's cron monitors of the jobs of schedules: that one is in progress, and how it ended.

A check-in has the job's id, so that one which is told twice, after a crash, is one. Without SENTRY_DSN nothing of this
is imported.
"""

import hashlib
import re
from math import ceil
from typing import Any
from uuid import UUID

import sentry_sdk
from sentry_sdk.crons import capture_checkin

from service.schedules.decide import ON_TIME
from service.schedules.schedule import Cron, Every, Schedule
from service.schedules.state import Run
from service.state.snapshot import Snapshot
from service.state.states import State

SLUG_CHARACTERS = 50
CLOSE_SECONDS = 2.0


class CheckIns:
    """A listener of `Following`, with a client of its own: what else uses Sentry in the process is left alone."""

    def __init__(self, dsn: str) -> None:
        self._client = sentry_sdk.Client(dsn=dsn, default_integrations=False, auto_enabling_integrations=False)

    def started(self, schedule: Schedule, run: Run, snapshot: Snapshot) -> None:
        """Tell that a job has begun."""
        self._send(schedule, run, "in_progress", None)

    def ended(self, schedule: Schedule, run: Run, snapshot: Snapshot) -> None:
        """Tell how a job has ended, and how long it took: from its first start, where the database knows that."""
        duration = None
        if snapshot.started_at and snapshot.completed_at:
            duration = (snapshot.completed_at - snapshot.started_at).total_seconds()
        self._send(schedule, run, "ok" if snapshot.state is State.SUCCEEDED else "error", duration)

    def close(self) -> None:
        """Send what is still to be sent, for a short time."""
        self._client.close(CLOSE_SECONDS)

    def _send(self, schedule: Schedule, run: Run, status: str, duration_seconds: float | None) -> None:
        config = monitor_config(schedule)
        if config is None or run.kind == "by-hand":
            return
        with sentry_sdk.new_scope() as scope:
            scope.set_client(self._client)
            capture_checkin(
                monitor_slug=slug_of(schedule.name),
                check_in_id=UUID(run.job_id).hex,
                status=status,
                duration=duration_seconds,
                monitor_config=config,
            )


def monitor_config(schedule: Schedule) -> Any:
    """Return the monitor of a schedule, None where Sentry has no word for it: one date, or less than a minute."""
    when = schedule.when
    told: dict[str, Any]
    if isinstance(when, Cron):
        told = {"type": "crontab", "value": when.expression.lower()}
    elif isinstance(when, Every) and (interval := _interval(when)):
        told = {"type": "interval", "value": interval[0], "unit": interval[1]}
    else:
        return None
    margin_seconds = ON_TIME.total_seconds() + schedule.jitter_ms / 1000
    return {"schedule": told, "timezone": schedule.timezone, "checkin_margin": ceil(margin_seconds / 60)}


def slug_of(name: str) -> str:
    """Return a name as Sentry takes it. Names that would become one are told apart."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:SLUG_CHARACTERS]
    if slug == name:
        return slug
    return f"{slug[: SLUG_CHARACTERS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def _interval(every: Every) -> tuple[int, str] | None:
    """Return an interval in the largest unit that it is a whole number of."""
    if every.days or every.weeks:
        days = every.days + 7 * every.weeks
        return (days // 7, "week") if days % 7 == 0 else (days, "day")
    seconds = every.seconds + 60 * every.minutes + 3600 * every.hours
    for length, unit in ((3600, "hour"), (60, "minute")):
        if seconds % length == 0:
            return seconds // length, unit
    return None
