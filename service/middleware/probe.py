"""The worker's probe: ready when every consumer of the process reaches Redis and it is not shutting down."""

from typing import Any

from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.observe.probe import Probe
from service.settings import get_settings


class WorkerProbe(Middleware):
    """Serves `/livez` and `/readyz` from the worker process's boot on."""

    def __init__(self) -> None:
        self._stopping = False
        self._booted = False

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        assert isinstance(broker, RedisBroker)
        settings = get_settings()
        Probe(
            settings.worker_host,
            settings.worker_port,
            lambda: self._booted and not self._stopping and broker.link.is_up,
        ).start()

    def after_worker_boot(self, broker: Broker, worker: Any) -> None:
        self._booted = True

    def before_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._stopping = True
