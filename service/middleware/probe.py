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
        self._probe: Probe | None = None

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        assert isinstance(broker, RedisBroker)
        self._stopping = False
        if self._probe is not None:
            return  # it serves for as long as the process lives, which may run one worker after another
        settings = get_settings()
        self._probe = Probe(
            settings.worker_host,
            settings.worker_port,
            lambda: self._booted and not self._stopping and broker.link.is_up,
        )
        self._probe.start()

    def after_worker_boot(self, broker: Broker, worker: Any) -> None:
        self._booted = True

    def before_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._stopping = True
