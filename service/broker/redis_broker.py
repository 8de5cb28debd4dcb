"""The broker: a Dramatiq broker whose every move of a message is one script on the server's own time.

What happens in Redis is in `scripts/`, how they are called in `wire.py`; how a process uses them is here, in layers,
each of which knows those before it: `hooks`, `process`, `actor_names`, `sending`, `settling`, `working`, and last
what only looks.
"""

from collections.abc import Mapping, Sequence
from time import monotonic, sleep

import redis
from dramatiq.errors import QueueJoinTimeout

from service.broker.working import Working


class RedisBroker(Working):
    """All that a process asks of a queue."""

    def find_progress(self, job_id: str, queue: str) -> str | None:
        """Return how far a job that has not ended says it is, JSON, or None. Raises BrokerUnavailable."""
        try:
            return self.wire.progress(queue, job_id)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def find_record(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job whose final state is not in the database yet: an event of `events.read`.

        Raises BrokerUnavailable.
        """
        try:
            return self.wire.find(job_id)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def find_records(self, by_queue: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
        """Return what Redis knows of jobs whose queues are known, as `find_record` does. Raises BrokerUnavailable."""
        try:
            return self.wire.find_among(by_queue)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def ended_among(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        """Return those jobs of a queue whose end is not in the database yet. Raises BrokerUnavailable."""
        try:
            return self.wire.ended_among(queue, job_ids)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def ping(self) -> None:
        """Raise BrokerUnavailable where Redis does not answer."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has nothing left. For tests. Raises QueueJoinTimeout."""
        deadline = None if timeout is None else monotonic() + timeout / 1000
        while self.wire.backlog(queue_name):
            if deadline is not None and monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            sleep(interval / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop everything of a queue but its history. For tests."""
        self.wire.purge(queue_name)

    def flush_all(self) -> None:
        """Drop everything of all declared queues but their history. For tests."""
        for queue in self.queues:
            self.flush(queue)

    def close(self) -> None:
        self.stop()
        if "wire" in self.__dict__:
            self.wire.close()
        if "client" in self.__dict__:
            self.client.close()
