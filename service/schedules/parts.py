"""The parts of a scheduler beside its loop, as the settings ask for them."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.schedules.clock import clock_of
from service.schedules.entry import Entry
from service.schedules.firing import Firing
from service.schedules.following import Following
from service.schedules.state import ScheduleState
from service.settings import Settings
from service.state.snapshot import Snapshot

if TYPE_CHECKING:
    from service.schedules.check_ins import CheckIns
    from service.schedules.definitions import Definitions
    from service.schedules.ledger import Ledger
    from service.schedules.runner import Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """Without a database there are neither definitions nor a ledger, and its driver is not imported."""

    broker: RedisBroker
    firing: Firing
    find: Callable[[UUID], Snapshot | None]
    is_followed: Callable[[Entry], bool]
    listener: "CheckIns | None" = None
    definitions: "Definitions | None" = None
    ledger: "Ledger | None" = None

    @classmethod
    def of(cls, broker: RedisBroker, settings: Settings) -> "Parts":
        """Make what the settings ask for. It connects when it is used."""
        listener = _check_ins(settings.sentry_dsn)

        def is_followed(entry: Entry) -> bool:
            return listener is not None or entry.schedule.pause_after_failures is not None

        if settings.database_url is None:
            logger.info("Without DATABASE_URL only the schedules in code run")

            def find(job_id: UUID) -> Snapshot | None:
                record = broker.find_record(str(job_id))
                return None if record is None else Snapshot.from_event(record)

            return cls(broker, Firing(broker, None, is_followed), find, is_followed, listener)

        from service.schedules.definitions import Definitions
        from service.schedules.ledger import Ledger
        from service.schedules.stored import StoredSchedules
        from service.state.database import engine_for
        from service.state.history import History

        engine = engine_for(settings.database_url)
        ledger = Ledger(engine)
        definitions = Definitions(broker, StoredSchedules(engine), ledger)
        firing = Firing(broker, ledger, is_followed)
        return cls(broker, firing, History(engine, broker).find, is_followed, listener, definitions, ledger)

    def start(self, running: ExitStack) -> None:
        """Read the stored schedules, and go on doing so."""
        if self.listener:
            running.callback(self.listener.close)
        if self.definitions:
            self.definitions.start()
            running.callback(self.definitions.stop)

    def follow(self, scheduler: "Scheduler", running: ExitStack) -> None:
        """Follow the jobs of a scheduler's schedules."""
        following = Following(
            states=self.firing.states,
            entries=lambda: scheduler.entries,
            is_followed=self.is_followed,
            find=self.find,
            clock=clock_of(self.broker),
            listener=self.listener,
            keep=self._keep,
        )
        following.start()
        running.callback(following.stop)

    def _keep(self, name: str, state: ScheduleState) -> None:
        if self.ledger:
            try:
                self.ledger.keep(name, state)
            except HistoryUnavailable as error:
                logger.warning("The pause of a schedule is known to Redis alone: %s", error, extra={"schedule": name})


def _check_ins(dsn: str | None) -> "CheckIns | None":
    if dsn is None:
        return None
    from service.schedules.check_ins import CheckIns

    return CheckIns(dsn)
