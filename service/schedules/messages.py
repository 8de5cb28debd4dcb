"""The message of a schedule's job, and its id, which follows from the schedule and the due time."""

from datetime import UTC, datetime
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

from dramatiq.errors import ActorNotFound
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.messages import copy_message
from service.errors import DeclarationError
from service.job import Job
from service.payload import check_json
from service.schedules.schedule import Schedule
from service.schedules.state import Run


def template_of(broker: RedisBroker, schedule: Schedule) -> Message[Any]:
    """Return what each job of a schedule is a copy of. Raises DeclarationError, PayloadError."""
    try:
        actor = broker.get_actor(schedule.actor)
    except ActorNotFound:
        raise DeclarationError(f"The schedule {schedule.name!r} names an unknown actor: {schedule.actor!r}") from None
    if isinstance(actor, Job):
        return actor.message_from_json(dict(schedule.payload))
    check_json(dict(schedule.payload), actor.actor_name)
    return cast("Any", actor).message_with_options(kwargs=dict(schedule.payload))


def message_for(template: Message[Any], schedule: Schedule, run: Run) -> Message[Any]:
    """Return the message of one job. It says of which schedule it is, and its nominal time."""
    options = {"schedule": schedule.name, "scheduled_for": _text(run.scheduled_for)}
    if schedule.tenant is not None:
        options["tenant"] = schedule.tenant
    return copy_message(template, message_id=run.job_id, options={**template.options, **options})


def job_id_in(namespace: str, schedule: Schedule, due: datetime) -> str:
    """Return the id of a due time's job. Another form would let two releases side by side send it twice."""
    return str(uuid5(NAMESPACE_URL, f"callboard:{namespace}:{schedule.name}:{_text(due)}"))


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()
