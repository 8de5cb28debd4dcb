"""Says of each job that carries out an agent's task that it has ended, by a small job of its own.

After a success that job goes out with the settlement, in one step; after a death, when the dead letter is there. It
says only which task to look at: whoever runs it asks Redis and the database how the job has ended. This process needs
no database, and one that is down holds up that small job only.
"""

from typing import Any
from uuid import UUID, uuid4, uuid5

from dramatiq.broker import Broker, MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.dead_letter import DeadLetter
from service.broker.messages import decode_fields
from service.broker.outgoing import collect
from service.errors import UnreadableMessage
from service.middleware.context import current_job_or_none
from service.queues import TASK_OUTCOMES

#: Of a message: the id of the task that its job carries out.
OPTION = "agent_task"
#: The actor that looks at a task whose job has ended.
ACTOR = "callboard.task-outcome"
#: Longer than a death stays untold while any worker of the queue lives.
ONCE_WITHIN_SECONDS = 24 * 3600


class TaskOutcomes(Middleware):
    """Stands after Outcomes, which closes the list of what goes out with a success."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is not None or OPTION not in message.options:
            return
        context = current_job_or_none()
        assert isinstance(broker, RedisBroker)
        with broker.insisting(), collect(context.follow_ups if context else None):
            broker.enqueue(_told(message.options[OPTION], message.message_id, str(uuid4())))

    def after_death(self, broker: RedisBroker, letter: DeadLetter) -> None:
        """Tell of a death, once. Raises BrokerUnavailable."""
        task_id = _task_of(letter)
        if task_id is not None:
            message_id = str(uuid5(UUID(letter.job_id), f"{ACTOR} {letter.died_ms}"))
            broker.send(_told(task_id, letter.job_id, message_id), once_within_seconds=ONCE_WITHIN_SECONDS)


def _told(task_id: object, job_id: str, message_id: str) -> Message[Any]:
    told = {"task_id": str(task_id), "job_id": job_id}
    return Message(TASK_OUTCOMES, ACTOR, (), told, {}, message_id=message_id)


def _task_of(letter: DeadLetter) -> str | None:
    try:
        UUID(letter.job_id)  # a foreign entry may have any name
        options: Any = decode_fields(letter.message).get("options")
    except (UnreadableMessage, ValueError):
        return None
    found: Any = options.get(OPTION) if isinstance(options, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, str) else None
