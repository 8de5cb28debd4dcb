"""Says in Redis what this worker process is and what it runs, every few seconds: who stops saying so is gone.

It is one command each time, every 15 seconds of an idle process, and every 5 of one that works.
"""

import json
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from socket import gethostname
from threading import Condition, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis

from service import __version__

if TYPE_CHECKING:
    from service.broker.working import Working

IDLE_SECONDS = 15.0
BUSY_SECONDS = 5.0
#: Who has said nothing for so long is gone.
GONE_SECONDS = 50.0
#: The jobs that are told of one by one.
MOST_JOBS = 100
#: Over which the rate is counted.
RATE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Presence:
    """Reports from a thread of its own, from `start` to `stop`."""

    def __init__(self, broker: "Working") -> None:
        self._broker = broker
        self._condition = Condition()
        self._has_news = False
        self._stopping = False
        self._thread: Thread | None = None
        self._started_at = datetime.now(UTC)
        self._queues: list[str] = []
        self._threads = 0
        #: What was finished at times within the last minute, the oldest first.
        self._past: deque[tuple[float, Counter[str]]] = deque()

    def start(self, queues: Iterable[str], threads: int) -> None:
        """Report a worker of these queues until stopped."""
        self._queues, self._threads = sorted(queues), threads
        if self._thread and self._thread.is_alive() and not self._stopping:
            return  # a further worker of this process
        self._stopping = False
        self._thread = Thread(target=self._run, name="presence", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Report at once."""
        with self._condition:
            self._has_news = True
            self._condition.notify()

    def leave(self) -> None:
        """Say that this worker is gone, without waiting for it."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def stop(self) -> None:
        """Say that this worker is gone."""
        self.leave()
        if self._thread:
            self._thread.join(self._broker.client.connection_pool.connection_kwargs["socket_timeout"])

    def _run(self) -> None:
        prune = True
        while True:
            with self._condition:
                stopping, self._has_news = self._stopping, False
            try:
                self._report("" if stopping else json.dumps(self.known()), prune=prune)
                prune = False
            except redis.RedisError:
                pass  # its other calls say so
            except Exception:
                logger.exception("This worker can't say what it is")
            if stopping:
                return
            with self._condition:
                pause = IDLE_SECONDS if self._broker.slots.is_idle else BUSY_SECONDS
                self._condition.wait_for(lambda: self._has_news or self._stopping, pause)

    def _report(self, what: str, *, prune: bool) -> None:
        gone_ms = int(GONE_SECONDS * 1000) if prune else 0
        self._broker.wire.run("report", self._queues[0], [self._broker.worker_id, what, gone_ms])

    def known(self) -> dict[str, Any]:
        """What is reported: see `workers.Worker`."""
        running = [delivery for held in list(self._broker.holdings.values()) for delivery in held.running()]
        running.sort(key=lambda delivery: delivery.lease.started_ms)
        return {
            "host": gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "queues": self._queues,
            "threads": self._threads,
            "started_at": int(self._started_at.timestamp() * 1000),
            "draining": self._broker.draining,
            "running": len(running),
            "jobs": [
                {
                    "job_id": delivery.message_id,
                    "type": delivery.actor_name,
                    "queue": delivery.lease.queue,
                    "attempt": delivery.lease.attempt,
                    "since": delivery.lease.started_ms,
                }
                for delivery in running[:MOST_JOBS]
            ],
            "per_minute": self._rates(),
        }

    def _rates(self) -> dict[str, float]:
        """Jobs that ended in a minute, by queue."""
        now, finished = monotonic(), self._broker.finished.copy()
        while len(self._past) > 1 and self._past[1][0] <= now - RATE_SECONDS:
            self._past.popleft()
        since, before = self._past[0] if self._past else (now, finished)
        self._past.append((now, finished))
        minutes = max(now - since, RATE_SECONDS) / 60
        return {queue: round((count - before[queue]) / minutes, 1) for queue, count in finished.items()}
