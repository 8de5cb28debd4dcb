"""`/healthz` says that the process answers; `/readyz` whether it reaches what it needs."""

import asyncio
from collections.abc import Callable

import redis
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.broker import RedisBroker
from service.errors import BrokerUnavailable, CallboardError
from service.settings import mask
from service.state.history import History

CHECK_SECONDS = 5.0
KEY_SECONDS = 10

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answers also while Redis and PostgreSQL are down: a restart would mend neither."""
    return {"status": "alive"}


@router.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    """Ask Redis and PostgreSQL at once, and say what they answered within five seconds."""
    health: Health = request.app.state.health
    checks = await health.check()
    # Without PostgreSQL jobs are still accepted and run: only Redis decides whether requests should come here.
    status = 200 if checks["redis"] == "ok" else 503
    return JSONResponse({"status": "ready" if status == 200 else "not ready", "checks": checks}, status_code=status)


class Health:
    """The checks of one application."""

    def __init__(self, broker: RedisBroker, history: History) -> None:
        self._checks = {"redis": Check(lambda: check_redis(broker)), "postgresql": Check(history.ping)}

    async def check(self) -> dict[str, str]:
        """Return for each server `ok`, or what is wrong."""
        results = await asyncio.gather(*(check.result() for check in self._checks.values()))
        return dict(zip(self._checks, results, strict=True))


class Check:
    """The check of one server. One runs at a time, and whoever asks meanwhile waits for its end too."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._thread = CapacityLimiter(1)
        self._running: asyncio.Task[str] | None = None

    async def result(self) -> str:
        """Return `ok`, or what is wrong, within CHECK_SECONDS."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        running = self._running
        done, _ = await asyncio.wait({running}, timeout=CHECK_SECONDS)
        return running.result() if done else f"no answer within {CHECK_SECONDS:g} s"

    async def _run(self) -> str:
        try:
            await to_thread.run_sync(self._ask, limiter=self._thread)
        except CallboardError as error:
            return str(error)
        return "ok"


def check_redis(broker: RedisBroker) -> None:
    """Write a key, as a send would: a full server, and a replica, answer a ping. Raises BrokerUnavailable."""
    try:
        broker.client.set(f"{broker.namespace}:readyz", "1", px=KEY_SECONDS * 1000)
    except redis.RedisError as error:
        raise BrokerUnavailable(f"Redis at {broker.where} can't be used: {mask(error)}", may_be_stored=False) from error
