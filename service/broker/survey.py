"""What Redis has of many jobs, and up to when all that has happened is stored: to compare it with the database."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from service.broker.events import sequence_of
from service.broker.keys import Keys
from service.broker.redis_broker import RedisBroker
from service.queues import QUEUES

SCANNED = 200


class Survey:
    """Looks at one broker's queues. Every method raises BrokerUnavailable."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def now_ms(self) -> int:
        """The server's time."""
        with self._broker.reaching():
            seconds, micro = self._broker.client.time()
        return seconds * 1000 + micro // 1000

    def mark(self, queue: str) -> int:
        """Return a sequence: whatever happens on this queue from now on is newer, and what has happened is not."""
        now_ms = self.now_ms()
        with self._broker.reaching():
            try:
                told = self._broker.client.xinfo_stream(self._keys(queue).events)
            except redis.ResponseError as error:
                if "no such key" not in str(error).lower():
                    raise
                return (now_ms << 20) - 1
        return sequence_of(told["last-generated-id"].decode())

    def is_stored(self, queue: str, mark: int) -> bool:
        """Whether all that had happened on a queue up to a mark is in the database."""
        keys = self._keys(queue)
        with self._broker.reaching(), self._broker.client.pipeline(transaction=True) as pipeline:
            pipeline.xrange(keys.events, count=1)
            pipeline.exists(keys.folded)
            first, folded = pipeline.execute()
        return not folded and (not first or sequence_of(first[0][0].decode()) > mark)

    def deaths(self, queue: str, job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the final events of those jobs that are dead letters, with `at`, the ms of the death."""
        if not job_ids:
            return {}
        with self._broker.reaching():
            records = self._broker.client.hmget(self._keys(queue).dead_letters, job_ids)
        found: dict[str, dict[str, str]] = {}
        for job_id, record in zip(job_ids, records, strict=True):
            if record is not None:
                death: dict[str, Any] = json.loads(record.partition(b"\n")[0])
                found[job_id] = {**death["event"], "at": str(death["died_at"])}
        return found

    def message(self, queue: str, job_id: str) -> bytes | None:
        """Return a message with the header that stands before it."""
        with self._broker.reaching():
            found: bytes | None = self._broker.client.hget(self._keys(queue).messages, job_id)
        return found

    def entries(self) -> Iterator[tuple[str, list[str]]]:
        """Go through the jobs that wait or run, some of a queue at a time; what moves meanwhile may come twice."""
        for queue in QUEUES:
            keys = self._keys(queue)
            for key in (keys.ready, keys.delayed, keys.deadlines):
                cursor = -1
                while cursor != 0:
                    with self._broker.reaching():
                        cursor, found = self._broker.client.zscan(key, max(cursor, 0), count=SCANNED)
                    names = [name.decode(errors="replace").partition("~")[0] for name, _ in found]
                    for start in range(0, len(names), SCANNED):
                        yield queue, names[start : start + SCANNED]

    def _keys(self, queue: str) -> Keys:
        return Keys(self._broker.namespace, queue)
