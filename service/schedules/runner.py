"""The scheduler: waits for the next due time and sends its job. Any number may run: each due time is sent once.

The job's id follows from the schedule's name and the due time, and Redis takes it once. What came due while no
scheduler ran is not made up for; of what came due while Redis was away, the newest is sent.
"""

import importlib
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from threading import Event
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

from dramatiq.errors import ActorNotFound
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.messages import copy_message
from service.errors import BrokerUnavailable, DeclarationError, SettingsError
from service.job import Job
from service.observe.probe import Probe
from service.schedules.schedule import Schedule
from service.settings import Settings

#: Longer than any two schedulers' clocks differ, or one of them is paused between its look at the clock and its send.
ONCE_WITHIN_SECONDS = 24 * 3600
LONGEST_WAIT_SECONDS = 5.0
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Scheduler:
    """Runs a table of schedules."""

    def __init__(
        self,
        broker: RedisBroker,
        schedules: Iterable[Schedule],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._broker = broker
        self._now = now
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._messages = {name: _message_of(broker, schedule) for name, schedule in self._schedules.items()}
        self._due = {name: schedule.when.after(now()) for name, schedule in self._schedules.items()}
        self.is_ready = False

    def run(self, stop: Event) -> None:
        """Work until `stop` is set, through outages of Redis."""
        logger.info("The scheduler has %d schedules", len(self._schedules))
        while not stop.is_set():
            try:
                self._broker.ping()
                self.is_ready = True
                stop.wait(self.fire_what_is_due())
            except BrokerUnavailable as error:
                self.is_ready = False
                logger.error("The scheduler can't send (%s); trying again in %.1f s", error, RETRY_SECONDS)
                stop.wait(RETRY_SECONDS)

    def fire_what_is_due(self) -> float:
        """Send what has come due, and return the seconds until the next due time. Raises BrokerUnavailable."""
        now = self._now()
        for name, due in self._due.items():
            if due <= now:
                self._fire(name, self._newest_due(name, due, now))
                self._due[name] = self._schedules[name].when.after(now)
        if not self._due:
            return LONGEST_WAIT_SECONDS
        wait = (min(self._due.values()) - self._now()).total_seconds()
        return min(max(wait, 0.0), LONGEST_WAIT_SECONDS)

    def _newest_due(self, name: str, due: datetime, now: datetime) -> datetime:
        missed = 0
        while (later := self._schedules[name].when.after(due)) <= now:
            due = later
            missed += 1
        if missed:
            logger.warning("The schedule missed %d due times", missed, extra={"schedule": name})
        return due

    def _fire(self, name: str, due: datetime) -> None:
        identity = f"callboard:{self._broker.namespace}:{name}:{due.isoformat()}"
        message = copy_message(self._messages[name], message_id=str(uuid5(NAMESPACE_URL, identity)))
        if self._broker.send(message, once_within_seconds=ONCE_WITHIN_SECONDS):
            fields = {"schedule": name, "due": due.isoformat(), "job_id": message.message_id}
            logger.info("The schedule sent its job", extra=fields)


def run_scheduler(settings: Settings, stop: Event) -> None:
    """Run a scheduler with the configured broker and table, and its probe. Raises SettingsError."""
    from service.broker import broker

    settings.require_redis_url()
    scheduler = Scheduler(broker, load_table(settings.schedules))
    probe = Probe(settings.worker_host, settings.worker_port, lambda: scheduler.is_ready)
    probe.start()
    scheduler.run(stop)
    probe.stop()


def load_table(name: str) -> tuple[Schedule, ...]:
    """Import a table of schedules by its `module:attribute`. Raises SettingsError."""
    module_name, _, attribute = name.partition(":")
    try:
        table: Any = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(table, tuple | list):
            raise TypeError("it is no tuple and no list")
        if not all(isinstance(schedule, Schedule) for schedule in cast("list[Any]", table)):
            raise TypeError("not every item of it is a Schedule")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"CALLBOARD_SCHEDULES={name!r} is wrong: {error}; "
            "for example: CALLBOARD_SCHEDULES=mycompany.schedules:SCHEDULES"
        ) from None
    schedules = cast("list[Schedule]", table)
    names = [schedule.name for schedule in schedules]
    if twice := {each for each in names if names.count(each) > 1}:
        raise SettingsError(
            f"CALLBOARD_SCHEDULES={name!r} is wrong: two schedules are named {', '.join(sorted(twice))}"
        )
    return tuple(schedules)


def _message_of(broker: RedisBroker, schedule: Schedule) -> Message[Any]:
    try:
        actor = broker.get_actor(schedule.actor)
    except ActorNotFound:
        raise DeclarationError(f"The schedule {schedule.name!r} names an unknown actor: {schedule.actor!r}") from None
    return actor.message_from_json(schedule.payload) if isinstance(actor, Job) else actor.message(**schedule.payload)
