"""`/healthz` says that the process answers; `/readyz` whether it reaches what it needs."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.broker import RedisBroker
from service.errors import CallboardError
from service.state.history import History

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answers also while Redis and PostgreSQL are down: a restart would mend neither."""
    return {"status": "alive"}


@router.get("/readyz")
def ready(request: Request) -> JSONResponse:
    """Ask Redis and PostgreSQL, each within its time-out."""
    broker: RedisBroker = request.app.state.broker
    history: History = request.app.state.history
    checks: dict[str, Any] = {}
    for name, check in (("redis", broker.ping), ("postgresql", history.ping)):
        try:
            check()
            checks[name] = "ok"
        except CallboardError as error:
            checks[name] = str(error)
    # Without PostgreSQL jobs are still accepted and run: only Redis decides whether requests should come here.
    status = 200 if checks["redis"] == "ok" else 503
    return JSONResponse({"status": "ready" if status == 200 else "not ready", "checks": checks}, status_code=status)
