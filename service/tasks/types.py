"""Which actors carry out tasks, and the message that a task's job begins as.

A task's type is the name of an actor, or an alias of one, that can be called with `task_id`, `task_type` and
`description`, or with some of them: an actor whose payload requires anything else carries out no tasks. A new type is a
new actor, or a further alias.
"""

import inspect
from typing import Any, cast

from dramatiq.actor import Actor
from dramatiq.errors import ActorNotFound
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.messages import copy_message
from service.errors import UnknownTaskType
from service.job import Job
from service.middleware.task_outcomes import OPTION
from service.tasks.task import Task

GIVEN = ("task_id", "task_type", "description")


def check_type(broker: RedisBroker, task_type: str) -> None:
    """Raise UnknownTaskType, which names the known ones, where no actor carries out tasks of this type."""
    try:
        if _taken(broker.get_actor(task_type)) is not None:
            return
    except ActorNotFound:
        pass
    raise UnknownTaskType(task_type, known_types(broker))


def known_types(broker: RedisBroker) -> list[str]:
    """Return the names and aliases of actors that carry out tasks, in order."""
    return [name for name in broker.known_types if _taken(broker.get_actor(name)) is not None]


def message_for(broker: RedisBroker, task: Task) -> Message[Any]:
    """Return the message of a new job for a task. Raises UnknownTaskType, PayloadError."""
    check_type(broker, task.task_type)
    actor = broker.get_actor(task.task_type)
    given = {"task_id": str(task.task_id), "task_type": task.task_type, "description": task.description}
    payload = {name: given[name] for name in _taken(actor) or ()}
    if isinstance(actor, Job):
        message = actor.message_from_json(payload)
    else:
        message = cast("Any", actor).message_with_options(kwargs=payload)
    # Within its queue too: of tasks that wait, the one with the lower number goes first.
    options = {**message.options, OPTION: str(task.task_id), "priority": task.priority - 1}
    return copy_message(message, queue_name=task.queue, options=options)


def _taken(actor: Actor[..., Any]) -> list[str] | None:
    """Return what of a task an actor is called with, or None where it needs something else, or nothing of a task."""
    if isinstance(actor, Job):
        fields = actor.contract.model.model_fields
        required = {name for name, field in fields.items() if field.is_required()}
        taken = [name for name in GIVEN if name in fields]
    else:
        parameters = inspect.signature(actor.fn).parameters.values()
        fixed = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        required = {one.name for one in fixed if one.default is one.empty}
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        named = {one.name for one in fixed if one.kind is not one.POSITIONAL_ONLY}
        taken = [name for name in GIVEN if takes_all or name in named]
    return taken if taken and required <= set(taken) else None
