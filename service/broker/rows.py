"""What a send puts into Redis for one message, and which messages it refuses."""

import re
from typing import Any

from dramatiq.actor import Actor
from dramatiq.message import Message

from service.broker.messages import encode_message
from service.broker.tenant_keys import with_own_keys
from service.broker.unique_keys import DEFAULT_STATES, UniqueKey
from service.broker.wire import Row
from service.errors import PayloadError
from service.payload import check_is_json, check_size

#: Where a message of an actor that this process does not know says nothing.
DEFAULT_PRIORITY = 5
DEFAULT_MAX_DELIVERIES = 3
JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def row_of(
    message: Message[Any],
    delay_ms: int | None,
    actor: Actor[..., Any] | None,
    max_message_bytes: int,
    max_payload_bytes: int,
) -> Row:
    """Return a message as it is sent. Raises ValueError for an id that is no UUID, PayloadError for its payload.

    max_payload_bytes: where it is less than max_message_bytes, an actor may say otherwise.
    """
    if not JOB_ID.fullmatch(message.message_id):
        # Anything else would fail out of the sender's sight, or be found under another text than it was sent with.
        raise ValueError(
            f"message_id={message.message_id!r} can't be sent: it is the job's key in the database, "
            "and must be a UUID in the form of str(uuid.uuid4())"
        )
    if not message.actor_name.isprintable():
        raise ValueError(f"actor_name={message.actor_name!r} can't be sent: it must be printable text")
    key = unique_key = ""
    if message.options:
        message, key, unique_key = with_own_keys(message)
    try:
        data = encode_message(message)
    except (TypeError, ValueError) as error:
        check_is_json(message.actor_name, message.args, message.kwargs)
        raise error  # it is none of the arguments
    if len(data) > max_message_bytes:
        problem = f"makes a message of {len(data)} bytes; the limit is {max_message_bytes}"
        raise PayloadError(message.actor_name, [("", f"{problem} (CALLBOARD_MAX_MESSAGE_BYTES)")])
    priority, most = DEFAULT_PRIORITY, DEFAULT_MAX_DELIVERIES
    if actor:
        priority = actor.priority
        most = actor.options.get("max_deliveries", most)
        if max_payload_bytes < max_message_bytes:
            max_payload_bytes = actor.options.get("max_payload_bytes", max_payload_bytes)
    if len(data) > max_payload_bytes:
        check_size(message.actor_name, message.args, message.kwargs, max_payload_bytes)
    attempt = 1
    if options := message.options:
        priority = int(options.get("priority", priority))
        attempt = int(options.get("retries", 0)) + 1
    return Row(
        message.message_id,
        message.actor_name,
        min(max(priority, 0), 9),
        None if delay_ms is None else max(int(delay_ms), 0),
        attempt,
        most,
        data,
        key,
        unique_of(unique_key, actor) if unique_key else None,
    )


def unique_of(key: str, actor: Actor[..., Any] | None) -> UniqueKey:
    """Return a unique key with what the actor says of it."""
    options = actor.options if actor else {}
    return UniqueKey(
        key,
        int(options.get("unique_window", 0) * 1000),
        options.get("unique_on_conflict", "keep"),
        options.get("unique_states", DEFAULT_STATES),
    )
