"""Which worker processes there are, by what each has said of itself: see presence.py."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import redis

from service.broker.keys import Keys
from service.broker.presence import GONE_SECONDS
from service.broker.redis_broker import RedisBroker
from service.queues import QUEUES


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in a worker's hands."""

    job_id: str
    type: str
    queue: str
    attempt: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process as it was at `seen_at`.

    running: how many jobs it runs, of which `jobs` names the first hundred, the longest running first. per_minute: by
    queue, how many jobs it has ended of late.
    """

    worker_id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    threads: int
    started_at: datetime
    seen_at: datetime
    draining: bool
    running: int
    jobs: list[RunningJob]
    per_minute: dict[str, float]


def live_workers(broker: RedisBroker) -> list[Worker]:
    """Return the workers that have been heard of lately, by name. Raises BrokerUnavailable."""
    key = Keys(broker.namespace, next(iter(QUEUES))).workers
    try:
        with broker.client.pipeline(transaction=False) as pipeline:
            pipeline.time()
            pipeline.hgetall(key)
            (seconds, _), found = pipeline.execute()
    except redis.RedisError as error:
        raise broker.unavailable(error) from error
    workers: list[Worker] = []
    for worker_id, said in cast("dict[bytes, bytes]", found).items():
        try:
            worker = _read(worker_id.decode(), said)
        except (KeyError, TypeError, ValueError):
            continue  # of a release that says it in another way
        if seconds - worker.seen_at.timestamp() <= GONE_SECONDS:
            workers.append(worker)
    return sorted(workers, key=lambda worker: worker.worker_id)


def _read(worker_id: str, said: bytes) -> Worker:
    seen, _, text = said.partition(b" ")
    known: dict[str, Any] = json.loads(text)
    return Worker(
        worker_id=worker_id,
        host=known["host"],
        pid=known["pid"],
        version=known["version"],
        queues=known["queues"],
        threads=known["threads"],
        started_at=_time(known["started_at"]),
        seen_at=_time(int(seen)),
        draining=known["draining"],
        running=known["running"],
        jobs=[
            RunningJob(one["job_id"], one["type"], one["queue"], one["attempt"], _time(one["since"]))
            for one in known["jobs"]
        ],
        per_minute=known["per_minute"],
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
