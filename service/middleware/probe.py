"""The worker's probe: ready when every consumer of the process reaches Redis and it is not shutting down.

Alive while its consumers come round, which neither a long job nor an outage keeps them from. And where
`callboard drain` reaches it.
"""

import json
import os
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.observe import run_dir
from service.observe.probe import Answers, Probe
from service.settings import get_settings

#: What kind of file in CALLBOARD_RUN_DIR tells of a worker.
ANNOUNCEMENT = "worker"


class WorkerProbe(Middleware):
    """Serves `/livez` and `/readyz` from the worker process's boot on."""

    def __init__(self) -> None:
        self._stopping = False
        self._booted = False
        self._probe: Probe | None = None
        self._secret = ""

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        assert isinstance(broker, RedisBroker)
        self._stopping = False
        if self._probe is not None:
            return  # it serves for as long as the process lives, which may run one worker after another
        settings = get_settings()
        # A consumer is not stuck that waits for a connection, then for a reply, and asks again.
        patience = max(settings.stuck_seconds, 3 * settings.redis_timeout_seconds)
        self._secret = token_hex(16)
        answers = Answers(
            is_ready=lambda: self._booted and not self._stopping and not broker.draining and broker.link.is_up,
            # Of a worker that stops nothing more is expected; it ends with its grace period.
            is_alive=lambda: self._stopping or not broker.pulse.silent(patience),
            findings=lambda: _state(broker) if broker.draining else {},
            metrics=lambda: _metrics(broker),
            acts={"/drain": lambda: _drain(broker)},
            secret=self._secret,
        )
        self._probe = Probe(settings.worker_host, settings.worker_port, answers)
        self._probe.start()

    def after_worker_boot(self, broker: Broker, worker: Any) -> None:
        self._booted = True
        run_dir.withdraw(run_dir.DRAINING)
        # Only now: a drain that came before the consumers would be forgotten at their start.
        if self._probe is not None:
            about = {"host": get_settings().worker_host, "port": self._probe.port, "secret": self._secret}
            run_dir.announce(ANNOUNCEMENT, json.dumps(about))

    def before_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._stopping = True

    def after_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        run_dir.withdraw(ANNOUNCEMENT)
        run_dir.withdraw(run_dir.DRAINING)


def _drain(broker: RedisBroker) -> Mapping[str, Any]:
    if not broker.draining:
        run_dir.announce(run_dir.DRAINING, f"{os.getpgrp()}\n")  # first: it may be killed at any time
    broker.life.stop.drain()
    return _state(broker)


def _state(broker: RedisBroker) -> Mapping[str, Any]:
    stop = broker.life.stop
    return {
        "status": "draining",
        "running": stop.running,
        "held": stop.held,
        "seconds_left": round(stop.seconds_left, 1),
    }


def _metrics(broker: RedisBroker) -> bytes:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    draining = Gauge("callboard_worker_draining", "1 while the process starts no more jobs.", registry=registry)
    draining.set(broker.draining)
    running = Gauge("callboard_worker_running_jobs", "Jobs that the process runs now.", registry=registry)
    running.set(broker.life.stop.running)
    return generate_latest(registry)
