"""Reads what a fetch brings: a delivery for the worker, a message to leave to others, or a dead letter."""

import json
import logging
from collections.abc import Callable
from typing import Any

from dramatiq.actor import Actor
from dramatiq.message import Message

from service.broker.delivery import Delivery, Lease
from service.broker.message_checks import FORMAT, check_place, format_of, payload_version_of
from service.broker.messages import decode_fields, encode_fields, message_of
from service.broker.once import duplicate
from service.broker.outcome import Failure, Reason
from service.broker.settlement import Settlement, dead, left_to_others
from service.errors import UnreadableMessage
from service.payload import ONLY_THE_FIRST, PayloadVersions

LEFT_FOR_MS = 2000

logger = logging.getLogger(__name__)


class Intake:
    """Decides by the message alone. `settle` takes the outcome of what does not run here."""

    def __init__(
        self,
        find_actor: Callable[[str], Actor[..., Any] | None],
        settle: Callable[[Settlement], None],
        unknown_actor_seconds: float,
    ) -> None:
        self._find_actor = find_actor
        self._settle = settle
        self._patience_ms = unknown_actor_seconds * 1000

    def open(self, lease: Lease, actor_name: str, data: bytes) -> Delivery | None:
        """Return a message's delivery, or None where it does not run here: then its outcome is on its way."""
        try:
            if lease.is_duplicate:
                actor = self._find_actor(actor_name)
                record, _, origin = data.partition(b"\n")
                options = actor.options if actor else {}
                self._settle(duplicate(lease, actor_name, record, options, json.loads(origin)))
                return None
            return self._read(lease, actor_name, data)
        except UnreadableMessage as error:
            failure = Failure("unreadable", str(error), "")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a message, those fetched with it go on
            failure = Failure.of(error)
        logger.error("A message can't be run and is a dead letter: %s", failure.message)
        self._settle(dead(lease, actor_name, failure, Reason.INVALID))
        return None

    def _read(self, lease: Lease, actor_name: str, data: bytes) -> Delivery | None:
        fields = decode_fields(data)
        if (given := format_of(fields)) > FORMAT:
            what = f"The message has the format {given}, and this release reads up to {FORMAT}"
            self._leave_or_bury(lease, actor_name, fields, what)
            return None
        message = message_of(fields)
        check_place(message, lease.queue, lease.entry)
        message.options.pop("eta", None)  # Redis has waited for it
        actor = self._find_actor(message.actor_name)
        delivery = Delivery(message, lease)
        if actor is not None and actor.actor_name != message.actor_name:
            delivery.actor_name = actor.actor_name  # the message has an alias, such as the actor's old name
        if actor is None:
            if self._is_left_to_others(lease, message.actor_name, fields, f"No actor {message.actor_name!r} here"):
                return None
            delivery.is_known = False
            delivery.dead_letter = _without_wait(fields)
        elif what := _unread_version(message, actor):
            self._leave_or_bury(lease, actor_name, fields, what)
            return None
        elif actor.options.get("max_deliveries", lease.max_deliveries) != lease.max_deliveries:
            # The sender may not have known the actor.
            delivery.lease = lease._replace(max_deliveries=actor.options["max_deliveries"])
            if lease.lapses >= delivery.lease.max_deliveries:
                why = f"Its worker died in each of {lease.lapses} deliveries"
                self._settle(dead(lease, actor_name, Failure("crashed", why, ""), Reason.CRASHED))
                return None
        return delivery

    def _leave_or_bury(self, lease: Lease, actor_name: str, fields: dict[str, Any], what: str) -> None:
        if not self._is_left_to_others(lease, actor_name, fields, what):
            failure = Failure("newer-format", f"{what}: no worker of another release took it in time", "")
            self._settle(dead(lease, actor_name, failure, Reason.INVALID, _without_wait(fields)))

    def _is_left_to_others(self, lease: Lease, actor_name: str, fields: dict[str, Any], what: str) -> bool:
        # In a rolling deployment a worker of the next release can run it: it gets its chance first.
        options = fields["options"]
        waited = options.get("unknown_for_ms")
        waited = waited if isinstance(waited, int | float) and waited >= 0 else 0
        if waited >= self._patience_ms:
            return False
        options["unknown_for_ms"] = waited + LEFT_FOR_MS
        logger.warning("%s: the job is left to others for a while", what)
        self._settle(left_to_others(lease, actor_name, encode_fields(fields), LEFT_FOR_MS))
        return True


def _unread_version(message: Message[Any], actor: Actor[..., Any]) -> str | None:
    """Say what is wrong where the actor reads no payload of the message's version."""
    versions: PayloadVersions | None = actor.options.get("payload_versions")
    if versions is None and not message.options:
        return None  # most messages
    given = payload_version_of(message.options)
    readable = versions.readable if versions else ONLY_THE_FIRST
    if given in readable:
        return None
    return f"The payload has version {given}, and {actor.actor_name} reads {readable[0]} to {readable[-1]} here"


def _without_wait(fields: dict[str, Any]) -> bytes:
    """The message as it was before it was left to others; empty where it never was."""
    return encode_fields(fields) if fields["options"].pop("unknown_for_ms", None) is not None else b""
