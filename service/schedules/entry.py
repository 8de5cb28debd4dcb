"""A schedule with what each of its jobs is a copy of."""

from typing import Any, NamedTuple

from dramatiq.message import Message

from service.broker import RedisBroker
from service.schedules.messages import template_of
from service.schedules.schedule import Schedule


class Entry(NamedTuple):
    """A schedule that can be run here."""

    schedule: Schedule
    template: Message[Any]

    @classmethod
    def of(cls, broker: RedisBroker, schedule: Schedule) -> "Entry":
        """Raises DeclarationError for an unknown actor, PayloadError."""
        return cls(schedule, template_of(broker, schedule))
