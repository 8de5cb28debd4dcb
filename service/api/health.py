"""Whether the process answers, whether it reaches what it needs, and how much waits in the queues."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import redis
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.broker import RedisBroker
from service.broker.depths import QueueDepth, depths
from service.errors import BrokerUnavailable, CallboardError
from service.queues import QUEUES
from service.settings import Settings, get_settings, mask
from service.state.history import History

CHECK_SECONDS = 5.0
KEY_SECONDS = 10

T = TypeVar("T")

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answers also while Redis and PostgreSQL are down: a restart would mend neither."""
    return {"status": "alive"}


@router.head("/ready", include_in_schema=False)
@router.head("/readyz", include_in_schema=False)
@router.get("/ready")
@router.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    """Ask Redis and PostgreSQL at once, and say what they answered within five seconds."""
    health: Health = request.app.state.health
    checks, counted = await health.check()
    # Without PostgreSQL jobs are still accepted and run: only Redis decides whether requests should come here.
    status = 200 if checks["redis"] == "ok" else 503
    depth = sum(queue.depth for queue in counted.values()) if counted else None
    body = {"status": "ready" if status == 200 else "not ready", "checks": checks, "queue_depth": depth}
    return JSONResponse(body, status_code=status)


@router.get("/api/workers/health")
async def workers_health(request: Request) -> JSONResponse:
    """Say whether the workers keep up: `degraded` where a queue has more jobs that wait than its threshold.

    While Redis can't be asked: 503, degraded, with what was known last.
    """
    health: Health = request.app.state.health
    counted, error = await health.depths.result()
    settings = get_settings()
    if error is None and counted:
        return JSONResponse(workers_body(counted, settings, health.counted_at))
    known = health.last_counted
    body = workers_body(known, settings, health.counted_at) if known else NOTHING_KNOWN
    return JSONResponse({**body, "status": "degraded", "reason": error}, status_code=503)


NOTHING_KNOWN: dict[str, Any] = {
    "status": "degraded",
    "queue_depth": None,
    "dead_letter_count": None,
    "max_jobs": sum(policy.concurrency * policy.processes for policy in QUEUES.values()),
    "as_of": None,
    "queues": {},
}


def workers_body(counted: dict[str, QueueDepth], settings: Settings, as_of: datetime | None) -> dict[str, Any]:
    """Return the answer for counts."""
    queues = {name: _queue_body(name, depth, settings.depth_threshold_of(name)) for name, depth in counted.items()}
    degraded = any(queue["status"] == "degraded" for queue in queues.values())
    return {
        "status": "degraded" if degraded else "healthy",
        "queue_depth": sum(depth.depth for depth in counted.values()),
        "dead_letter_count": sum(depth.dead for depth in counted.values()),
        "max_jobs": NOTHING_KNOWN["max_jobs"],
        "as_of": as_of and as_of.isoformat(),
        "queues": queues,
    }


def _queue_body(name: str, depth: QueueDepth, threshold: int) -> dict[str, Any]:
    policy = QUEUES[name]
    return {
        "status": "degraded" if depth.depth > threshold else "healthy",
        "depth": depth.depth,
        "threshold": threshold,
        "running": depth.running,
        "scheduled": depth.scheduled,
        "dead_letters": depth.dead,
        "oldest_age_seconds": depth.oldest_age_seconds,
        "max_jobs": policy.concurrency * policy.processes,
    }


class Health:
    """The checks of one application."""

    def __init__(self, broker: RedisBroker, history: History) -> None:
        self._broker = broker
        self._checks = {"redis": Check(lambda: check_redis(broker)), "postgresql": Check(history.ping)}
        self.depths = Check(self._count)
        self.last_counted: dict[str, QueueDepth] | None = None
        self.counted_at: datetime | None = None

    async def check(self) -> tuple[dict[str, str], dict[str, QueueDepth] | None]:
        """Return for each server `ok`, or what is wrong; and what the queues have, where that is known."""
        (counted, _), *results = await asyncio.gather(
            self.depths.result(), *(check.result() for check in self._checks.values())
        )
        return {name: error or "ok" for name, (_, error) in zip(self._checks, results, strict=True)}, counted

    def _count(self) -> dict[str, QueueDepth]:
        counted = depths(self._broker)
        self.last_counted, self.counted_at = counted, datetime.now(UTC)
        return counted


class Check(Generic[T]):
    """A question to one server. One is asked at a time, and whoever asks meanwhile waits for its answer too."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._thread = CapacityLimiter(1)
        self._running: asyncio.Task[tuple[T | None, str | None]] | None = None

    async def result(self) -> tuple[T | None, str | None]:
        """Return the answer and None, or None and what is wrong, within CHECK_SECONDS."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        running = self._running
        done, _ = await asyncio.wait({running}, timeout=CHECK_SECONDS)
        return running.result() if done else (None, f"no answer within {CHECK_SECONDS:g} s")

    async def _run(self) -> tuple[T | None, str | None]:
        try:
            return await to_thread.run_sync(self._ask, limiter=self._thread), None
        except CallboardError as error:
            return None, str(error)


def check_redis(broker: RedisBroker) -> None:
    """Write a key, as a send would: a full server, and a replica, answer a ping. Raises BrokerUnavailable."""
    try:
        broker.client.set(f"{broker.namespace}:readyz", "1", px=KEY_SECONDS * 1000)
    except redis.RedisError as error:
        raise BrokerUnavailable(f"Redis at {broker.where} can't be used: {mask(error)}", may_be_stored=False) from error
