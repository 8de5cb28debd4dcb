"""Sending to the actors of the tests by name, and asking Redis what became of it."""

from typing import Any

from dramatiq.message import Message

from service.broker import RedisBroker


def send(broker: RedisBroker, actor: str, *args: Any, queue: str = "default", **payload: Any) -> Message[Any]:
    """Send a message to an actor that this process does not know."""
    broker.declare_queue(queue)
    message: Message[Any] = Message(queue_name=queue, actor_name=actor, args=args, kwargs=payload, options={})
    broker.send(message)
    return message


def state_of(broker: RedisBroker, message: Message[Any]) -> str:
    """The state of a job whose final state no projector has stored."""
    record = broker.find_record(message.message_id)
    assert record is not None
    return record["state"]
