"""What an actor says of its payload: how large it may be, and which versions of it are read."""

from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.middleware.defaults import WrongOptions


class PayloadOptions(Middleware):
    """Claims `max_payload_bytes`, which holds at the send, and `payload_versions`, which `@job` makes."""

    @property
    def actor_options(self) -> set[str]:
        return {"max_payload_bytes", "payload_versions"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        most = actor.options.get("max_payload_bytes", 1)
        if type(most) is not int or most < 1:
            raise WrongOptions(f"{actor.actor_name}: max_payload_bytes={most!r} must be a whole number, 1 or more")
