"""What a death brings about: a log line, and the callback that the actor names with `on_dead`.

The callback is sent after the dead letter is there, whatever the job died of, and under an id that follows from job and
death: who tells of a death a second time, after a crash, sends the same, and Redis takes it once.
"""

import inspect
import logging
import os
import sys
from time import time
from typing import Any, cast
from uuid import UUID, uuid5

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.errors import ActorNotFound
from dramatiq.message import Message
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.dead_letter import DeadLetter
from service.broker.obituaries import NotYet
from service.broker.outcome import Reason
from service.errors import JobExists, PayloadError
from service.middleware.defaults import WrongOptions
from service.payload import PayloadContract, PayloadVersions, may_hold_personal

#: Longer than a death stays untold while any worker of the queue lives.
ONCE_WITHIN_SECONDS = 24 * 3600
#: For so long a death is left to workers that know its actor.
LEFT_TO_OTHERS_SECONDS = 300

logger = logging.getLogger(__name__)


class Deaths(Middleware):
    """Holds the option `on_dead`: the name of an actor."""

    @property
    def actor_options(self) -> set[str]:
        return {"on_dead"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        named = actor.options.get("on_dead")
        if named is None:
            return
        if not isinstance(named, str) or not named:
            raise WrongOptions(f"{actor.actor_name}: on_dead={named!r} must be the name of an actor")
        if named == actor.actor_name:
            raise WrongOptions(f"{named}: on_dead names the actor itself, whose death would call it for ever")

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        # Not at the declaration: the callback may be declared after the actor.
        assert isinstance(broker, RedisBroker)
        for actor in list(cast("dict[str, Actor[..., Any]]", broker.actors).values()):
            named = actor.options.get("on_dead")
            if named and not broker.is_named(named):
                # An error of a hook is logged and passed over by Dramatiq; this is meant to end the process.
                print(f"{actor.actor_name}: on_dead={named!r} names no actor that is known here", file=sys.stderr)
                sys.exit(os.EX_CONFIG)

    def after_death(self, broker: RedisBroker, letter: DeadLetter) -> None:
        """Send the callback, then log. Raises BrokerUnavailable, NotYet."""
        try:
            named = broker.get_actor(letter.function).options.get("on_dead")
        except ActorNotFound:
            named = None
            is_known_nowhere = letter.reason in (Reason.UNKNOWN_ACTOR, Reason.INVALID)
            if not is_known_nowhere and time() - letter.died_ms / 1000 < LEFT_TO_OTHERS_SECONDS:
                raise NotYet from None
        if named:
            _call(broker, broker.get_actor(named), letter)
        fields = {
            "job_id": letter.job_id,
            "type": letter.function,
            "queue": letter.original_queue,
            "reason": letter.reason.value,
            "error": letter.error["type"],
            "attempts": len(letter.attempts),
            "failed_at": letter.failed_at,
        }
        logger.error("A job is dead", extra=fields)


def _call(broker: RedisBroker, callback: Actor[..., Any], letter: DeadLetter) -> None:
    told = letter.to_dict()
    # The callback's own payload is shown wherever a job is: what it does not mark as personal, it gets as it is shown.
    shown = letter.shown(broker.get_actor(letter.function))
    told |= {name: value for name, value in shown.items() if not may_hold_personal(callback, name)}
    try:
        _send(broker, callback, letter, told)
    except PayloadError:
        # Too long with what the job itself was given: the callback can ask for it by the job's id.
        _send(broker, callback, letter, {**told, "payload": None, "raw_base64": None})


def _send(broker: RedisBroker, callback: Actor[..., Any], letter: DeadLetter, told: dict[str, Any]) -> None:
    taken = _parameters_of(callback)
    versions: PayloadVersions | None = callback.options.get("payload_versions")
    keys_for: Any = getattr(callback, "keys_for", None)
    keys: dict[str, str | None] = keys_for(told) if keys_for else {}
    message: Message[Any] = Message(
        queue_name=callback.queue_name,
        actor_name=callback.actor_name,
        args=(),
        kwargs={name: value for name, value in told.items() if taken is None or name in taken},
        options={**keys, "payload_version": versions.current} if versions else dict(keys),
        message_id=str(uuid5(_uuid_of(letter), f"on_dead {letter.died_ms}")),
    )
    try:
        broker.send(message, once_within_seconds=ONCE_WITHIN_SECONDS)
    except JobExists as error:
        logger.info("A death is not told of: %s", error, extra={"job_id": letter.job_id})


def _parameters_of(callback: Actor[..., Any]) -> set[str] | None:
    """Return the names that a callback takes, or None for all: a callback takes of a death what it has a use for."""
    contract = getattr(callback, "contract", None)
    if isinstance(contract, PayloadContract):
        return None  # a worker passes over what a model does not know
    parameters = inspect.signature(callback.fn).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def _uuid_of(letter: DeadLetter) -> UUID:
    # A foreign entry may have any name.
    try:
        return UUID(letter.job_id)
    except ValueError:
        return uuid5(UUID(int=0), letter.entry.hex())
