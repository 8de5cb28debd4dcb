"""What holds where an actor is silent: the queue's attempts, back-off and time limit, and the middle priority."""

from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware, MiddlewareError

from service.broker.rows import DEFAULT_PRIORITY
from service.errors import DeclarationError
from service.middleware.error_kinds import contradiction
from service.queues import MAX_DELAY_SECONDS, QueuePolicy, policy_of


class QueueDefaults(Middleware):
    """Fills an actor's options from its queue when it is declared, plain Dramatiq actors included."""

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        try:
            policy = policy_of(actor.queue_name)
        except DeclarationError as error:
            raise WrongOptions(str(error)) from None
        _set_limits(actor.options, policy)
        actor.options.setdefault("max_retries", policy.max_attempts - 1)
        actor.options.setdefault("min_backoff", int(policy.backoff.delay_seconds * 1000))
        actor.options.setdefault("max_backoff", int(policy.backoff.cap_seconds * 1000))
        actor.options.setdefault("backoff_factor", policy.backoff.factor)
        actor.options.setdefault("backoff_jitter", policy.backoff.jitter)
        if actor.priority == 0:
            # Dramatiq's own default, which can't be told from a 0 that was written out. Taken for that, every plain
            # actor would go before all others.
            actor.priority = DEFAULT_PRIORITY
        _check(actor)


def _set_limits(options: dict[str, Any], policy: QueuePolicy) -> None:
    hard = options.setdefault("time_limit", int(policy.time_limit_seconds * 1000))
    soft = None if policy.soft_time_limit_seconds is None else int(policy.soft_time_limit_seconds * 1000)
    # The queue's soft limit is not for an actor whose own limit comes sooner.
    if soft is not None and isinstance(hard, int | float) and soft < hard:
        options.setdefault("soft_time_limit", soft)


class WrongOptions(DeclarationError, MiddlewareError):
    """An actor's options can't work. As a MiddlewareError it ends the declaration: Dramatiq swallows all others."""


def _check(actor: Actor[..., Any]) -> None:
    if not actor.actor_name.isprintable():
        # It is part of the line that stands before each stored message.
        raise WrongOptions(f"The name {actor.actor_name!r} must be printable text")
    retries, shortest, longest = (actor.options[name] for name in ("max_retries", "min_backoff", "max_backoff"))
    if not isinstance(retries, int) or retries < 0:
        raise WrongOptions(f"{actor.actor_name}: max_retries={retries!r} must be a whole number, 0 or more")
    if not (actor.options.get("retry_when") is None or callable(actor.options["retry_when"])):
        raise WrongOptions(f"{actor.actor_name}: retry_when={actor.options['retry_when']!r} must be a function")
    if wrong := contradiction(actor.options.get("retry_for", ()), actor.options.get("permanent_for", ())):
        raise WrongOptions(f"{actor.actor_name}: {wrong}")
    if not (_is_number(shortest) and _is_number(longest) and 0 <= shortest <= longest <= MAX_DELAY_SECONDS * 1000):
        raise WrongOptions(
            f"{actor.actor_name}: min_backoff={shortest!r}, max_backoff={longest!r}: "
            f"0 <= min_backoff <= max_backoff <= {MAX_DELAY_SECONDS * 1000} must hold"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
