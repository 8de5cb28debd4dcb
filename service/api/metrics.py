"""`/metrics`: what the API counts, and what waits in the queues. The names are a contract: see docs/operating.md."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.health import Health
from service.broker.depths import QueueDepth

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: In the place of the route, of what was refused before one was looked for: a path may be anything.
NO_ROUTE = "none"

router = APIRouter(tags=["health"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Answer in the text format of Prometheus. While Redis can't be asked, without the queues."""
    health: Health = request.app.state.health
    requests: Requests = request.app.state.requests
    counted, _ = await health.depths.result()
    body = generate_latest(requests.registry) + generate_latest(_Families(queue_families(counted)))
    return Response(body, media_type=CONTENT_TYPE_LATEST)


class Requests:
    """Counts and times of one application's requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route"]
        self._count = Counter(
            "callboard_http_requests", "Requests answered.", [*labels, "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "callboard_http_request_duration_seconds",
            "From the request's head to the end of its answer.",
            labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._known: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        key = (method if method in METHODS else "other", route, status)
        found = self._known.get(key)
        if found is None:
            # Looked up once: by its labels it takes longer than to count.
            found = self._known[key] = (self._count.labels(*key[:2], str(status)), self._seconds.labels(*key[:2]))
        found[0].inc()
        found[1].observe(seconds)


class Measured:
    """ASGI middleware: the outermost, so that what others refuse is counted too."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            route = getattr(scope.get("route"), "path", NO_ROUTE)
            self._requests.note(scope["method"], route, status, time.perf_counter() - started)


def queue_families(counted: Mapping[str, QueueDepth] | None) -> Iterator[Metric]:
    """Return what the queues have, or only that Redis could not be asked."""
    up = GaugeMetricFamily("callboard_redis_up", "Whether Redis has told the depths of the queues.")
    up.add_metric([], 0 if counted is None else 1)
    yield up
    by_queue: list[tuple[str, str, dict[str, float]]] = [
        ("depth", "Jobs that could start now.", {}),
        ("scheduled", "Jobs that are not due yet.", {}),
        ("running", "Jobs that workers hold.", {}),
        ("dead_letters", "Dead letters.", {}),
        ("oldest_age_seconds", "How long the job has waited that has waited longest; 0 where none waits.", {}),
    ]
    for queue, depth in (counted or {}).items():
        values = (depth.depth, depth.scheduled, depth.running, depth.dead, depth.oldest_age_seconds or 0.0)
        for (_, _, samples), value in zip(by_queue, values, strict=True):
            samples[queue] = value
    for name, meaning, samples in by_queue:
        family = GaugeMetricFamily(f"callboard_queue_{name}", meaning, labels=["queue"])
        for queue, value in samples.items():
            family.add_metric([queue], value)
        if samples:
            yield family


class _Families(CollectorRegistry):
    """What was just asked, in the shape in which it is written."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
