"""Which actors and queues a process knows, and by which names."""

from collections.abc import Callable
from typing import Any, cast

from dramatiq.actor import Actor
from dramatiq.errors import ActorNotFound
from dramatiq.middleware import Middleware

from service.broker.process import Process
from service.errors import DeclarationError
from service.queues import policy_of
from service.settings import Settings

#: Begins the names of actors that are part of the service: nobody sends them by name.
OWN_ACTORS = "callboard."


class ActorNames(Process):
    """Declares queues, actors and their aliases."""

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self.aliases: dict[str, str] = {}
        super().__init__(settings, middleware)
        self.queues: dict[str, None] = {}

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue of the table. Raises DeclarationError for any other."""
        policy_of(queue_name)
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def is_named(self, name: str) -> bool:
        """Whether an actor has this name, or answers to it."""
        return name in cast("dict[str, Any]", self.actors) or name in self.aliases

    @property
    def known_types(self) -> list[str]:
        """The names and aliases of all actors but our own, in order."""
        names = [*cast("dict[str, Any]", self.actors), *self.aliases]
        return sorted(name for name in names if not name.startswith(OWN_ACTORS))

    def declare_alias(self, alias: str, actor: Actor[..., Any]) -> None:
        """Let an actor answer to a further name. Raises DeclarationError where the name is taken."""
        if self.is_named(alias):
            raise DeclarationError(f"The alias {alias!r} of {actor.actor_name!r} is the name of another actor")
        self.aliases[alias] = actor.actor_name

    def get_actor(self, actor_name: str) -> Actor[..., Any]:
        """Look an actor up by its name or an alias. Raises dramatiq's ActorNotFound."""
        try:
            return cast("dict[str, Actor[..., Any]]", self.actors)[self.aliases.get(actor_name, actor_name)]
        except KeyError:
            raise ActorNotFound(actor_name) from None

    def find_actor(self, name: str) -> Actor[..., Any] | None:
        """Look an actor up by its name or an alias: None where this process does not know it."""
        return cast("dict[str, Actor[..., Any]]", self.actors).get(self.aliases.get(name, name))
