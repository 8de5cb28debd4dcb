"""The scheduler: waits for the next due time and fires its schedule. Any number may run: each due time is fired once.

The clock is that of Redis. Which schedules there are comes from code and, where there is a database, from its table.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, QueueFull
from service.observe.probe import Answers, Probe
from service.schedules.clock import Clock, clock_of
from service.schedules.code_table import load_table
from service.schedules.entry import Entry
from service.schedules.firing import Firing
from service.schedules.parts import Parts
from service.schedules.schedule import Schedule
from service.settings import Settings

if TYPE_CHECKING:
    from service.schedules.definitions import Definitions

#: How long at most until it looks again: at the clock, which may have jumped, and at the stored schedules.
LONGEST_WAIT_SECONDS = 1.0
RETRY_SECONDS = 1.0
#: For so long at a time it looks at schedules that it has not seen yet, or not since the clock was put back: to count
#: what a thousand have missed may take a minute, and others come due meanwhile.
UNSEEN_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Scheduler:
    """Runs the schedules of code, and those of `definitions`.

    Raises DeclarationError or PayloadError for one of code that can't run.
    """

    def __init__(
        self,
        broker: RedisBroker,
        schedules: Iterable[Schedule],
        *,
        firing: Firing | None = None,
        definitions: "Definitions | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self._code = {schedule.name: Entry.of(broker, schedule) for schedule in schedules}
        self._definitions = definitions
        self._firing = firing or Firing(broker)
        self._clock = clock or clock_of(broker)
        #: What was read last of the stored ones.
        self._stored: Mapping[str, Entry] = {}
        self._entries = dict(self._code)
        #: Due times from now on. Without one, a schedule has still to be looked at.
        self._due: dict[str, datetime | None] = {}
        self._last_now: datetime | None = None
        self.is_ready = False

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All schedules that run here. Safe to read from another thread."""
        return self._entries

    def run(self, stop: Event) -> None:
        """Work until `stop` is set, through outages of Redis and PostgreSQL."""
        logger.info("The scheduler has %d schedules in code", len(self._code))
        while not stop.is_set():
            try:
                wait = self.fire_what_is_due()
                self.is_ready = True
                stop.wait(wait)
            except BrokerUnavailable as error:
                self.is_ready = False
                logger.error("The scheduler can't send (%s); trying again in %.1f s", error, RETRY_SECONDS)
                stop.wait(RETRY_SECONDS)

    def fire_what_is_due(self) -> float:
        """Send what has come due, and return the seconds until the next due time. Raises BrokerUnavailable."""
        self._take_over_what_is_stored()
        now = self._clock()
        if self._last_now and now < self._last_now:
            self._due.clear()  # the clock was put back: what it says is looked at anew
        self._last_now = now
        due = [name for name in self._entries if _is_due(self._due.get(name), now)]
        unseen = [name for name in self._entries if name not in self._due]
        refused: QueueFull | None = None
        until = monotonic() + UNSEEN_SECONDS
        for number, name in enumerate([*due, *unseen]):
            if number > len(due) and monotonic() > until:
                break
            try:
                self._fire(name, now)
            except QueueFull as error:
                refused = error  # by one queue: the jobs of others are sent
        if refused:
            raise refused
        if any(name not in self._due for name in unseen):
            return 0.0
        if due or unseen:
            now = self._clock()
        coming = [time for time in self._due.values() if time]
        wait = (min(coming) - now).total_seconds() if coming else LONGEST_WAIT_SECONDS
        return min(max(wait, 0.0), LONGEST_WAIT_SECONDS)

    def _fire(self, name: str, now: datetime) -> None:
        entry = self._entries[name]
        self._due.pop(name, None)
        state = self._firing.fire(entry, now)
        if entry.schedule.version and state.version > entry.schedule.version and self._definitions:
            self._definitions.refresh_soon()
            self._due[name] = now + timedelta(seconds=LONGEST_WAIT_SECONDS)
            return
        self._due[name] = entry.schedule.after(max(now, state.decided_until))

    def _take_over_what_is_stored(self) -> None:
        if self._definitions is None or self._definitions.entries is self._stored:
            return
        before, self._stored = self._stored, self._definitions.entries
        for name in self._stored.keys() & self._code.keys():
            logger.error("A stored schedule has the name of one in code, which runs", extra={"schedule": name})
        self._entries = {**self._stored, **self._code}
        for name in before.keys() | self._stored.keys():
            if before.get(name) != self._stored.get(name):
                self._due.pop(name, None)


def _is_due(due: datetime | None, now: datetime) -> bool:
    return due is not None and due <= now


def run_scheduler(settings: Settings, stop: Event) -> None:
    """Run a scheduler with the configured broker, table and database, and its probe. Raises SettingsError."""
    from service.broker import broker

    settings.require_redis_url()
    table = load_table(settings.schedules)
    with ExitStack() as running:
        parts = Parts.of(broker, settings)
        parts.start(running)
        scheduler = Scheduler(broker, table, firing=parts.firing, definitions=parts.definitions)
        parts.follow(scheduler, running)
        probe = Probe(settings.worker_host, settings.worker_port, Answers(lambda: scheduler.is_ready))
        probe.start()
        running.callback(probe.stop)
        scheduler.run(stop)
