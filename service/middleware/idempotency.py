"""The options of idempotency keys. Redis holds the keys, in the steps that lease and settle a job."""

import json
from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker.once import FIRST_RESULT, SCOPES
from service.middleware.defaults import WrongOptions
from service.middleware.durations import seconds_of


class Idempotency(Middleware):
    """Checks the options when an actor is declared, plain Dramatiq actors included."""

    @property
    def actor_options(self) -> set[str]:
        return {"idempotency_key", "idempotency_ttl", "idempotency_scope", "duplicate_result", "remember_failure"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        options, name = actor.options, actor.actor_name
        if "idempotency_key" in options:
            # A typed actor has taken it out: it knows its payload.
            raise WrongOptions(f"{name}: idempotency_key is for @job; here, name it for each send in send_with_options")
        if "idempotency_ttl" in options:
            options["idempotency_ttl"] = seconds_of(options["idempotency_ttl"], f"{name}: idempotency_ttl")
        if options.get("idempotency_scope", "queue") not in SCOPES:
            given = options["idempotency_scope"]
            raise WrongOptions(f"{name}: idempotency_scope={given!r} must be one of {', '.join(SCOPES)}")
        if not isinstance(options.get("remember_failure", False), bool):
            raise WrongOptions(f"{name}: remember_failure={options['remember_failure']!r} must be True or False")
        answer = options.get("duplicate_result")
        if answer is not FIRST_RESULT:
            try:
                json.dumps(answer, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise WrongOptions(f"{name}: duplicate_result={answer!r} must have a JSON form: {error}") from None
