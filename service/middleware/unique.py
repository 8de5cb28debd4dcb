"""Unique jobs: what becomes of a send while another job has its key. The script of the send decides."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker.unique_keys import CONFLICTS, DEFAULT_STATES, STATES, OnConflict, UniqueState
from service.middleware.defaults import WrongOptions
from service.middleware.durations import seconds_of


@dataclass(frozen=True, slots=True)
class Unique:
    """Of the jobs of a queue with the same key, one is there at a time.

    key: a text with fields of the payload in braces, or a function of the payload's JSON. None where a field is None.
    window: for how long after its send a job has the key: seconds, or text such as "15m". By default until it ends.
    on_conflict: what a further send does that meets a waiting job. "keep": it raises JobExists. "replace": it takes the
        other's place, which ends as cancelled. "reschedule": it is not stored, and the other is due when it was to be.
        A job that runs or has ended is always kept.
    states: where a job has the key, "waiting" among them. Without "running", a further job may be sent once it has
        started. With "ended", it has the key until the window is over, however early it ends.
    """

    key: str | Callable[[dict[str, Any]], str | None]
    window: str | float | None = None
    on_conflict: OnConflict = "keep"
    states: Collection[UniqueState] = DEFAULT_STATES


class UniqueJobs(Middleware):
    """Checks the options when an actor is declared."""

    @property
    def actor_options(self) -> set[str]:
        return {"unique_key", "unique_window", "unique_on_conflict", "unique_states"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        options, name = actor.options, actor.actor_name
        if "unique_key" in options:
            # A typed actor has taken it out: it knows its payload.
            raise WrongOptions(f"{name}: unique_key is for @job; here, name it for each send in send_with_options")
        if "unique_window" in options:
            options["unique_window"] = seconds_of(options["unique_window"], f"{name}: unique_window")
        if options.get("unique_on_conflict", "keep") not in CONFLICTS:
            given = options["unique_on_conflict"]
            raise WrongOptions(f"{name}: unique_on_conflict={given!r} must be one of {', '.join(CONFLICTS)}")
        states = options.get("unique_states", DEFAULT_STATES)
        if isinstance(states, str) or "waiting" not in states or not set(states) <= set(STATES):
            raise WrongOptions(f"{name}: unique_states={states!r} must be waiting, with running, ended or both")
        if "ended" in states and "unique_window" not in options:
            raise WrongOptions(f"{name}: unique_states with ended need a window, or a key would be taken for ever")
