"""Idempotency keys that count in all queues.

No script sees two queues, which may be on two servers. So a delivery takes its key in its own queue first, in the fetch
as ever, and then lets one more string in Redis point there; it runs only when it does. Whoever finds that it points to
another queue asks that one who has the key: the pointer alone holds nothing, so nobody has to take it back, and a crash
between any two steps leaves none that hinders. What a settlement does with the key stays one step in one queue.
"""

from collections.abc import Callable
from logging import getLogger
from typing import Any

import redis
from dramatiq.actor import Actor

from service.broker.delivery import Delivery
from service.broker.once import duplicate, is_wide, kept_ms
from service.broker.settlement import Settlement, left_to_others, origin_of
from service.broker.wire import Wire
from service.queues import QUEUES

#: A job that waits looks again after a quarter of the time for which it has, within these bounds.
LEAST_WAIT_MS, MOST_WAIT_MS = 1000, 15_000
#: For how long a pointer outlives the limit of its job and the time of its key: settlements may be late.
SPARE_MS = 24 * 3600 * 1000
#: Of a job without a limit.
MOST_RUN_MS = 30 * 24 * 3600 * 1000

logger = getLogger(__name__)


class WideKeys:
    """Decides between the fetch and the start. `settle` takes the outcome of what does not start here."""

    def __init__(
        self, wire: Wire, find_actor: Callable[[str], Actor[..., Any] | None], settle: Callable[[Settlement], None]
    ) -> None:
        self._wire = wire
        self._find_actor = find_actor
        self._settle = settle

    def admitted(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return what may start: the outcome of all else is on its way. Takes a round trip for each wide key."""
        return [delivery for delivery in deliveries if not delivery.lease.key or self._may_start(delivery)]

    def _may_start(self, delivery: Delivery) -> bool:
        actor = self._find_actor(delivery.actor_name)
        if actor is None or not is_wide(actor):
            return True
        lease = delivery.lease
        try:
            found = self._take(delivery, actor.options)
        except redis.RedisError as error:
            logger.warning("A job waits, since its key can't be asked for now: %s", error, extra={"queue": lease.queue})
            found = b"claimed"
        if found is None:
            return True
        if found in (b"claimed", b"lapsed"):
            wait_ms = min(max((lease.started_ms - lease.created_ms) // 4, LEAST_WAIT_MS), MOST_WAIT_MS)
            self._settle(left_to_others(lease, delivery.actor_name, delivery.encode(), wait_ms))
        else:
            self._settle(duplicate(lease, delivery.actor_name, found, actor.options, origin_of(delivery)))
        return False

    def _take(self, delivery: Delivery, options: dict[str, Any]) -> bytes | None:
        """Return None where the key is this delivery's, or who has it, as holder.lua says."""
        lease, keep_ms = delivery.lease, _pointer_ms(delivery, options)
        pointer = self._wire.point(lease, keep_ms)
        if pointer is None:
            return None
        queue = pointer.partition(b" ")[0].decode()
        found = self._wire.holder(queue, lease.key)
        if found is None:
            return None if self._wire.point(lease, keep_ms, instead_of=pointer) is None else b"claimed"
        if found == b"lapsed" and queue in QUEUES:
            # Its own workers may all be gone.
            self._wire.fetch(queue, 0, lease_ms=0, wakeable_ms=0)
        return found


def _pointer_ms(delivery: Delivery, options: dict[str, Any]) -> int:
    limit_ms = delivery.options.get("time_limit", options.get("time_limit"))
    if not isinstance(limit_ms, int | float) or not 0 < limit_ms < MOST_RUN_MS:
        limit_ms = MOST_RUN_MS
    return kept_ms(options) + int(limit_ms) + SPARE_MS
