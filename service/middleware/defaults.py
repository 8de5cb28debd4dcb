"""The queue's policy, where an actor is silent: attempts, back-off, time limit."""

from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.queues import policy_of


class QueueDefaults(Middleware):
    """Fills an actor's options from its queue when it is declared, plain Dramatiq actors included."""

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        policy = policy_of(actor.queue_name)
        limit_seconds = policy.soft_time_limit_seconds or policy.time_limit_seconds
        actor.options.setdefault("time_limit", int(limit_seconds * 1000))
        actor.options.setdefault("max_retries", policy.max_attempts - 1)
        actor.options.setdefault("min_backoff", int(policy.backoff.delay_seconds * 1000))
        actor.options.setdefault("max_backoff", int(policy.backoff.cap_seconds * 1000))
