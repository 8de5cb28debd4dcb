"""How much each queue has, asked in one round trip for all of them."""

from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING

import redis

from service.broker.keys import Keys
from service.broker.scripts import source
from service.queues import QUEUES

if TYPE_CHECKING:
    from service.broker.redis_broker import RedisBroker

KEYS = ("ready", "delayed", "messages", "deadlines", "once_waiting", "dead")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue. `depth`: jobs that could start now; `scheduled`: those that are not due; `dead`: dead letters.

    oldest_age_seconds: how long the job has waited that has waited longest: since its send, or since it was due.
    """

    depth: int
    scheduled: int
    running: int
    dead: int
    oldest_age_seconds: float | None


def depths(broker: "RedisBroker") -> dict[str, QueueDepth]:
    """Count all queues. Raises BrokerUnavailable."""
    script = source("depth")
    try:
        with broker.client.pipeline(transaction=False) as pipeline:
            pipeline.script_load(script)  # with the calls, so that none can meet a server that has forgotten it
            for queue in QUEUES:
                keys = Keys(broker.namespace, queue)
                names = [getattr(keys, name) for name in KEYS]
                pipeline.evalsha(sha1(script.encode(), usedforsecurity=False).hexdigest(), len(names), *names)
            _, *replies = pipeline.execute()
    except redis.RedisError as error:
        raise broker.unavailable(error) from error
    return {queue: _depth(*reply) for queue, reply in zip(QUEUES, replies, strict=True)}


def _depth(depth: int, scheduled: int, running: int, dead: int, oldest_ms: int) -> QueueDepth:
    return QueueDepth(depth, scheduled, running, dead, None if oldest_ms < 0 else oldest_ms / 1000)
