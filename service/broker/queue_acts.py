"""What an operator sees of a queue and does with it: counts, pause, resume, purge.

A paused queue starts nothing: what is due or comes back goes to its place and waits, and what runs goes on.
"""

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.broker.job_acts import cancellation
from service.broker.keys import Keys
from service.broker.outcome import BRIEF_CHARACTERS
from service.broker.redis_broker import RedisBroker
from service.queues import QUEUES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Who has paused a queue, when and why."""

    at: datetime
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """What is on a queue, by state.

    pending may start now; scheduled waits for its time; waiting, for its key; retrying has failed before, and waits or
    may start; paused would be pending or retrying, and could start now, if the queue were not paused.
    is_exact: whether `retrying`, and what it is taken from, is counted and not estimated of a sample.
    oldest_seconds: since the oldest of what may start was sent, or failed last; None where there is none.
        Of what was sent for later the time until then counts as well: when it came due is not kept.
    """

    name: str
    pending: int
    scheduled: int
    waiting: int
    running: int
    retrying: int
    paused: int
    dead: int
    is_exact: bool
    oldest_seconds: float | None
    pause: Pause | None

    @property
    def purgeable(self) -> int:
        """How many a purge would take out."""
        return self.pending + self.scheduled + self.waiting + self.retrying + self.paused


class QueueActs:
    """The acts on the queues of a broker. All raise BrokerUnavailable, and can be repeated."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def counts(self) -> list[QueueCounts]:
        """Count every queue of the table."""
        return [self.counts_of(queue) for queue in QUEUES]

    def counts_of(self, queue: str) -> QueueCounts:
        """Count one queue."""
        *numbers, oldest, pause = self._run("counts", queue, [])
        ready, delayed, waiting, running, dead, retries_ready, retries_delayed, exact = map(int, numbers)
        is_paused = bool(pause)
        return QueueCounts(
            name=queue,
            pending=0 if is_paused else ready - retries_ready,
            scheduled=delayed - retries_delayed,
            waiting=waiting,
            running=running,
            retrying=retries_delayed + (0 if is_paused else retries_ready),
            paused=ready if is_paused else 0,
            dead=dead,
            is_exact=exact == 1,
            oldest_seconds=None if int(oldest) < 0 else int(oldest) / 1000,
            pause=_pause_of(pause) if is_paused else None,
        )

    def pause(self, queue: str, *, by: str, why: str = "") -> bool:
        """Let nothing of a queue start, in any worker, also after restarts. Returns False where it is paused."""
        note = json.dumps({"by": by[:BRIEF_CHARACTERS], "why": why[:BRIEF_CHARACTERS]})
        return self._switch(queue, note, "A queue was paused", by, why)

    def resume(self, queue: str, *, by: str, why: str = "") -> bool:
        """Let a queue go on, and wake its idle workers. Returns False where it is not paused."""
        return self._switch(queue, "", "A queue was resumed", by, why)

    def purge(self, queue: str, *, by: str, why: str = "", keep: bool = False) -> int:
        """Take out what waits on a queue and was sent before this call: it ends as cancelled. Returns the number.

        keep: it becomes dead letters instead, which can be replayed. What runs is left alone. It is done in steps of
        about a hundred: a purge that is interrupted has done some, and is to be repeated.
        """
        failure = cancellation(by, why)
        outcome = "dead" if keep else "cancelled"
        last = self._last_send(queue)
        cursor, purged = b"0", 0
        while True:
            step = [cursor, last, failure.to_json(), outcome, failure.brief()]
            cursor, taken = self._run("purge", queue, step)
            purged += taken
            if cursor == b"0":
                break
        about = {"queue": queue, "count": purged, "kept": keep, "by": by, "why": why}
        logger.warning("A queue was purged", extra=about)
        if keep and purged:
            self._broker.obituaries.wake()
        return purged

    def _last_send(self, queue: str) -> int:
        with self._broker.reaching():
            return int(self._broker.client.get(Keys(self._broker.namespace, queue).counter) or 0)

    def _switch(self, queue: str, note: str, said: str, by: str, why: str) -> bool:
        changed = self._run("pause", queue, [note]) == 1
        if changed:
            logger.warning(said, extra={"queue": queue, "by": by, "why": why})
        return changed

    def _run(self, script: str, queue: str, arguments: list[Any]) -> Any:
        with self._broker.reaching():
            return self._broker.wire.run(script, queue, arguments)


def _pause_of(text: bytes) -> Pause | None:
    try:
        known = json.loads(text)
        return Pause(datetime.fromtimestamp(int(known["at"]) / 1000, UTC), str(known["by"]), str(known["why"]))
    except (KeyError, TypeError, ValueError):
        return Pause(datetime.fromtimestamp(0, UTC), "(somebody else than Callboard)", "")
