"""A scheduler's copy of the stored schedules, read anew every few seconds by a thread of its own.

While PostgreSQL is away the copy stays as it is, and what it holds goes on.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from time import monotonic

from service.broker import RedisBroker
from service.errors import CallboardError
from service.schedules.entry import Entry
from service.schedules.ledger import KEPT_DAYS, Ledger
from service.schedules.stored import StoredSchedule, StoredSchedules

REFRESH_SECONDS = 2.0
PRUNE_SECONDS = 3600.0

logger = logging.getLogger(__name__)


class Definitions:
    """`entries` is replaced as a whole: who reads it sees one reading of the table."""

    def __init__(self, broker: RedisBroker, stored: StoredSchedules, ledger: Ledger) -> None:
        self._broker = broker
        self._stored = stored
        self._ledger = ledger
        self.entries: Mapping[str, Entry] = {}
        self._told: dict[str, str] = {}
        self._is_down = False
        self._prune_at = monotonic() + 60
        self._wanted = Event()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="schedules", daemon=True)

    def start(self) -> None:
        """Read the table once, if that is possible, and then again and again."""
        self._refresh()
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._stop.set()
        self._wanted.set()
        self._thread.join(5)

    def refresh_soon(self) -> None:
        """Ask for a reading before the next is due: somebody knows of a newer version."""
        self._wanted.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait(REFRESH_SECONDS)
            self._wanted.clear()
            try:
                if not self._stop.is_set():
                    self._refresh()
            except Exception:
                # Without this thread no change would be seen any more.
                logger.exception("The stored schedules can't be read")

    def _refresh(self) -> None:
        try:
            rows = self._stored.all()
            if monotonic() >= self._prune_at:
                self._prune_at = monotonic() + PRUNE_SECONDS
                self._ledger.prune(datetime.now(UTC) - timedelta(days=KEPT_DAYS))
        except CallboardError as error:
            if not self._is_down:
                logger.error("The stored schedules can't be read (%s): those that are known go on", error)
            self._is_down = True
            return
        if self._is_down:
            logger.info("The stored schedules can be read again")
        self._is_down = False
        entries = {name: entry for name, row in rows.items() if (entry := self._entry_of(row))}
        self._told = {name: text for name, text in self._told.items() if name in rows}
        if {name: entry.schedule for name, entry in entries.items()} != {
            name: entry.schedule for name, entry in self.entries.items()
        }:
            self.entries = entries

    def _entry_of(self, row: StoredSchedule) -> Entry | None:
        known = self.entries.get(row.name)
        if known and known.schedule.version == row.version:
            return known
        try:
            return Entry.of(self._broker, row.read().to_schedule(row.version))
        except CallboardError as error:
            # One that can't run here must not keep the others from it. Another scheduler may know its actor.
            problem = f"{row.version} {error}"
            if self._told.get(row.name) != problem:
                logger.error("A stored schedule can't run here: %s", error, extra={"schedule": row.name})
            self._told[row.name] = problem
            return None
