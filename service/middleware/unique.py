"""Unique jobs: a send is refused while another job with its key has not ended. The script of the send decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.middleware.defaults import WrongOptions
from service.middleware.durations import seconds_of


@dataclass(frozen=True, slots=True)
class Unique:
    """Of the jobs of a queue with the same key, one is there at a time: a further send raises JobExists.

    key: a text with fields of the payload in braces, or a function of the payload's JSON. None where a field is None.
    window: for how long after a job's send it refuses others: seconds, or text such as "15m". By default until it ends.
    """

    key: str | Callable[[dict[str, Any]], str | None]
    window: str | float | None = None


class UniqueJobs(Middleware):
    """Checks the options when an actor is declared."""

    @property
    def actor_options(self) -> set[str]:
        return {"unique_key", "unique_window"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        options, name = actor.options, actor.actor_name
        if "unique_key" in options:
            # A typed actor has taken it out: it knows its payload.
            raise WrongOptions(f"{name}: unique_key is for @job; here, name it for each send in send_with_options")
        if "unique_window" in options:
            options["unique_window"] = seconds_of(options["unique_window"], f"{name}: unique_window")
