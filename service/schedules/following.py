"""Follows the jobs of schedules to their end, for what depends on their outcomes: a pause after failures, check-ins.

It asks what became of them, once a second, and only of schedules that want to know. So a worker does nothing for it,
and whatever a job died of is seen.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Protocol
from uuid import UUID

from service.errors import CallboardError
from service.schedules.clock import Clock
from service.schedules.entry import Entry
from service.schedules.schedule import Schedule
from service.schedules.state import Paused, Run, ScheduleState
from service.schedules.states import States
from service.state.snapshot import Snapshot
from service.state.states import State, is_final

FOLLOW_SECONDS = 1.0
#: A job that nobody knows, so long after it was due, is lost with the server that had it.
LOST_AFTER = timedelta(minutes=5)

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """Is told of the jobs that are followed, each maybe more than once: after a crash."""

    def started(self, schedule: Schedule, run: Run, snapshot: Snapshot) -> None:
        """A job has begun."""
        ...

    def ended(self, schedule: Schedule, run: Run, snapshot: Snapshot) -> None:
        """A job has ended, and will not run again."""
        ...


class Following:
    """One thread, of a scheduler."""

    def __init__(
        self,
        *,
        states: States,
        entries: Callable[[], Mapping[str, Entry]],
        is_followed: Callable[[Entry], bool],
        find: Callable[[UUID], Snapshot | None],
        clock: Clock,
        listener: Listener | None = None,
        keep: Callable[[str, ScheduleState], None] | None = None,
    ) -> None:
        self._states = states
        self._entries = entries
        self._is_followed = is_followed
        self._find = find
        self._clock = clock
        self._listener = listener
        self._keep = keep
        self._stop = Event()
        self._thread = Thread(target=self._run, name="following", daemon=True)

    def start(self) -> None:
        """Follow until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(FOLLOW_SECONDS):
            try:
                self.look()
            except CallboardError as error:
                logger.warning("The jobs of schedules can't be followed now: %s", error)
            except Exception:
                logger.exception("The jobs of schedules can't be followed")

    def look(self) -> None:
        """Ask once what became of all jobs that are followed. Raises BrokerUnavailable, HistoryUnavailable."""
        entries = {name: entry for name, entry in self._entries().items() if self._is_followed(entry)}
        now: datetime | None = None
        for name, stored in self._states.read_many(entries).items():
            for run in stored.state.followed if stored.state else ():
                now = now or self._clock()
                self._look_at(name, entries[name].schedule, run, now)

    def _look_at(self, name: str, schedule: Schedule, run: Run, now: datetime) -> None:
        snapshot = self._find(UUID(run.job_id))
        if snapshot is None:
            if now - run.scheduled_for > LOST_AFTER + timedelta(milliseconds=run.delay_ms):
                self._states.change(name, lambda state: _without(state, run, now))
            return
        has_begun = snapshot.started_at is not None or is_final(snapshot.state)
        if has_begun and not run.is_started:
            if self._listener:
                self._listener.started(schedule, run, snapshot)
            begun = replace(run, is_started=True)
            self._states.change(name, lambda state: _with(state, run, begun, now))
            run = begun
        if is_final(snapshot.state):
            if self._listener:
                self._listener.ended(schedule, run, snapshot)
            failed = snapshot.state is not State.SUCCEEDED
            state = self._states.change(name, lambda state: after_end(schedule, state, run, now, failed=failed))
            if state and state.paused and self._keep:
                self._keep(name, state)


def after_end(
    schedule: Schedule, state: ScheduleState | None, run: Run, now: datetime, *, failed: bool
) -> ScheduleState | None:
    """Return the state after a job's end: paused after too many failures in a row. None where that was seen before."""
    if state is None or run not in state.followed:
        return None
    failures = state.failures + 1 if failed else 0
    most = schedule.pause_after_failures
    paused = state.paused
    if most is not None and failures >= most and not paused:
        paused = Paused("callboard", f"{failures} failures in a row", now)
        logger.error("The schedule is paused after %d failures in a row", failures, extra={"schedule": schedule.name})
    followed = tuple(each for each in state.followed if each != run)
    return state.changed(now, followed=followed, failures=failures, paused=paused)


def _without(state: ScheduleState | None, run: Run, now: datetime) -> ScheduleState | None:
    if state is None or run not in state.followed:
        return None
    return state.changed(now, followed=tuple(each for each in state.followed if each != run))


def _with(state: ScheduleState | None, before: Run, after: Run, now: datetime) -> ScheduleState | None:
    if state is None or before not in state.followed:
        return None
    return state.changed(now, followed=tuple(after if each == before else each for each in state.followed))
