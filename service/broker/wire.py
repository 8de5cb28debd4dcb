"""Calls the scripts: what a process says to Redis about one queue, and what it reads from the replies.

Every method raises redis.RedisError. None is repeated here: who calls knows what may be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.broker import events
from service.broker.caller import Caller
from service.broker.delivery import Lease
from service.broker.keys import Keys
from service.broker.messages import GROWTH_BYTES
from service.broker.scripts import NAMES, source
from service.broker.settlement import Settlement
from service.queues import QUEUES
from service.settings import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Row:
    """One message to be sent. `priority` 0 (first) to 9; `delay_ms` None for at once."""

    entry: str
    actor: str
    priority: int
    delay_ms: int | None
    attempt: int
    max_deliveries: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch gave: leases with actor and message, and the ms until something comes due or lapses, or None."""

    messages: list[tuple[Lease, str, bytes]]
    soonest_ms: int | None


class Wire:
    """One process's side of the scripts."""

    def __init__(self, client: Any, namespace: str, worker_id: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._client = client
        self._namespace = namespace
        self._worker_id = worker_id
        self._most_bytes = max_message_bytes + GROWTH_BYTES
        self._scripts = Caller(client, {name: source(name) for name in NAMES})

    def enqueue(self, queue: str, rows: Sequence[Row], send: tuple[str, int], once_within_seconds: int = 0) -> bool:
        """Put messages on a queue. `send` is the producer and the number of its send. Returns False if refused."""
        keys = Keys(self._namespace, queue)
        producer, number = send
        args: list[str | int | bytes] = [self._namespace, queue, number, once_within_seconds]
        for row in rows:
            delay: str | int = "" if row.delay_ms is None else row.delay_ms
            args += [row.entry, row.actor, row.priority, delay, row.attempt, row.max_deliveries, row.data]
        names = [keys.ready, keys.delayed, keys.messages, keys.events, keys.counter, keys.waiters]
        names += [keys.producer(producer), keys.sent(rows[0].entry)]
        return self._scripts.call("enqueue", names, args) != -1

    def fetch(self, queue: str, count: int, *, lease_ms: int, wakeable_ms: int) -> Fetched:
        """Lease up to `count` messages. Where there is none, the process can be woken for `wakeable_ms`."""
        keys = Keys(self._namespace, queue)
        names = [keys.ready, keys.delayed, keys.messages, keys.events, keys.counter, keys.waiters]
        names += [keys.leases, keys.deadlines, keys.lapses, keys.finals, keys.dead, keys.dead_messages]
        args = [self._namespace, queue, count, lease_ms, self._worker_id, wakeable_ms, self._most_bytes]
        now, soonest, token, *rest = self._scripts.call("fetch", names, args)
        started, first = int(now), int(token)
        messages = [
            _leased(
                stored=rest[at + 2],
                queue=queue,
                entry=rest[at],
                token=first + at // 3,
                now=started,
                lapses=rest[at + 1],
            )
            for at in range(0, len(rest), 3)
        ]
        return Fetched(messages, None if int(soonest) < 0 else int(soonest))

    def settle(self, queue: str, batch: Sequence[Settlement]) -> list[str]:
        """Settle entries. Returns those that this process did not hold any more: of them nothing changed."""
        keys = Keys(self._namespace, queue)
        names = [keys.ready, keys.delayed, keys.messages, keys.events, keys.finals, keys.waiters]
        names += [keys.leases, keys.deadlines, keys.lapses, keys.dead, keys.dead_messages]
        args: list[str | bytes] = [self._namespace, queue]
        for each in batch:
            args += [each.lease.entry, each.lease.token, each.outcome, each.event, each.data]
        return [entry.decode() for entry in self._scripts.call("settle", names, args)]

    def renew(self, queue: str, leases: Sequence[Lease], *, lease_ms: int) -> list[str]:
        """Extend leases. Returns the entries that this process does not hold any more."""
        keys = Keys(self._namespace, queue)
        args: list[str | int] = [lease_ms]
        for lease in leases:
            args += [lease.entry, lease.token]
        return [entry.decode() for entry in self._scripts.call("renew", [keys.leases, keys.deadlines], args)]

    def close(self) -> None:
        """Give the connections back."""
        self._scripts.close()

    def find(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job, as an event of `events.read`."""
        with self._client.pipeline(transaction=False) as pipeline:
            for queue in QUEUES:
                keys = Keys(self._namespace, queue)
                pipeline.hget(keys.finals, job_id)
                pipeline.hget(keys.messages, job_id)
                pipeline.hget(keys.leases, job_id)
                pipeline.zscore(keys.delayed, job_id)
            replies = pipeline.execute()
        for number, queue in enumerate(QUEUES):
            final, message, lease, due = replies[number * 4 : number * 4 + 4]
            if found := events.live(job_id, queue, final=final, message=message, lease=lease, due=due):
                return found
        return None

    def backlog(self, queue: str) -> int:
        """Return the number of messages that are not settled: ready, delayed and held."""
        return self._client.hlen(Keys(self._namespace, queue).messages)

    def purge(self, queue: str) -> None:
        """Drop everything of a queue but its history."""
        keys = Keys(self._namespace, queue)
        self._client.delete(keys.ready, keys.delayed, keys.messages, keys.leases, keys.deadlines, keys.lapses)
        self._client.delete(keys.dead, keys.dead_messages)


def _leased(
    *, stored: bytes, queue: str, entry: bytes, token: int, now: int, lapses: bytes
) -> tuple[Lease, str, bytes]:
    header, _, data = stored.partition(b"\n")
    _, created, attempt, most, actor = header.split(b" ", 4)
    lease = Lease(queue, entry.decode(), str(token), now, int(created), int(attempt), int(lapses), int(most))
    return lease, actor.decode(errors="replace"), data
