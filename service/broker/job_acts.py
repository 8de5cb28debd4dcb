"""What an operator does with one job that has not ended: cancel it, or give it another priority or time.

    acts = JobActs(broker)
    acts.cancel(job_id, by="ada", why="sent by mistake")

Each act is one atomic script. In a race with the job's end exactly one of them wins, and the answer says which.
"""

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis

from service.broker.keys import Keys
from service.broker.outcome import BRIEF_CHARACTERS, Failure, storable
from service.broker.outgoing import FollowUp
from service.broker.redis_broker import RedisBroker
from service.broker.relay import ONCE_WITHIN_SECONDS
from service.broker.wire import MOST_OUTGOING
from service.queues import QUEUES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Act:
    """What an act has found or done: the state that the job is in after it.

    done: whether the act holds. Of a running job that is to be cancelled it does: it ends in a moment, as cancelled.
    """

    state: str
    done: bool
    priority: int | None = None
    #: Where the job is to start later.
    run_at: datetime | None = None


class JobActs:
    """The acts on single jobs of a broker. All raise BrokerUnavailable, and can be repeated."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def cancel(self, job_id: str, *, by: str, why: str = "") -> Act | None:
        """Cancel a job. Returns None where Redis does not know it (any more)."""
        queue = self._queue_of(job_id)
        if queue is None:
            return None
        found = self._run("cancel", queue, [job_id, cancellation(by, why).to_json()])
        if found in (b"cancelled", b"running"):
            logger.info("A job was cancelled", extra={"job_id": job_id, "queue": queue, "by": by, "why": why})
            return Act(found.decode(), done=True)
        ended = _ended(found)
        return Act("cancelled", done=True) if ended and ended.state == "cancelled" else ended

    def forestall(self, queue: str, job_id: str, within_seconds: int) -> bool:
        """Let a job that nobody has sent never be sent by `enqueue_once`, for this time. Returns False where it was."""
        with self._broker.reaching():
            sent = Keys(self._broker.namespace, queue).sent(job_id)
            return bool(self._broker.client.set(sent, "1", nx=True, ex=within_seconds))

    def reschedule(
        self,
        job_id: str,
        *,
        by: str,
        why: str = "",
        priority: int | None = None,
        delay_ms: int | None = None,
        run_at: datetime | None = None,
    ) -> Act | None:
        """Give a job that waits another priority, 0 (first) to 9, or time. Returns None where Redis does not know it.

        A job that runs or has ended is left as it is: then the act is not done.
        """
        queue = self._queue_of(job_id)
        if queue is None:
            return None
        when = "-" if delay_ms is None else f"+{delay_ms}"
        if run_at is not None:
            when = str(max(int(run_at.timestamp() * 1000), 0))
        word, *rest = self._run("reschedule", queue, [job_id, "-" if priority is None else priority, when])
        if word == b"ok":
            fields = {"job_id": job_id, "queue": queue, "by": by, "why": why, "priority": priority, "when": when}
            logger.info("A job was given another place", extra=fields)
            state, number, due = rest
            later = None if due == b"-1" else datetime.fromtimestamp(int(due) / 1000, UTC)
            return Act(state.decode(), done=True, priority=int(number), run_at=later)
        if word == b"gone":
            with self._broker.reaching():
                return _ended(self._broker.client.hget(Keys(self._broker.namespace, queue).finals, job_id))
        return Act("running" if word == b"running" else "pending", done=False)

    def _queue_of(self, job_id: str) -> str | None:
        """The queue that a job is on; else the one that has its final event, or that it is on its way to."""
        with self._broker.reaching(), self._broker.client.pipeline(transaction=False) as pipeline:
            for name in ("messages", "finals"):
                for queue in QUEUES:
                    pipeline.hexists(getattr(Keys(self._broker.namespace, queue), name), job_id)
            found = pipeline.execute()
        queue = next((queue for queue, is_there in zip([*QUEUES, *QUEUES], found, strict=True) if is_there), None)
        return queue or self._relayed_to(job_id)

    def _relayed_to(self, job_id: str) -> str | None:
        """Take a job that is still on its way from the one that has sent it to its queue, as a relay does."""
        wire = self._broker.wire
        with self._broker.reaching():
            for queue in QUEUES:
                for element in wire.outgoing(queue, MOST_OUTGOING):
                    with suppress(ValueError):  # what stands there otherwise is the relay's to report
                        nonce, follow_up = FollowUp.unpack(element)
                        if follow_up.entry == job_id:
                            wire.store(nonce, follow_up, ONCE_WITHIN_SECONDS)
                            wire.remove_outgoing(queue, element)
                            return follow_up.queue
        return None

    def _run(self, script: str, queue: str, arguments: list[Any]) -> Any:
        with self._broker.reaching():
            try:
                return self._broker.wire.run(script, queue, arguments)
            except redis.ConnectionError:
                return self._broker.wire.run(script, queue, arguments)  # what was done is found so


def cancellation(by: str, why: str) -> Failure:
    """The error of a job that was cancelled."""
    by, why = storable(by)[:BRIEF_CHARACTERS], storable(why)[:BRIEF_CHARACTERS]
    return Failure("Cancelled", f"Cancelled by {by}: {why}" if why else f"Cancelled by {by}", "")


def _ended(final: bytes | None) -> Act | None:
    if final is None:
        return None
    return Act(str(json.loads(final.partition(b" ")[2])["state"]), done=False)
