"""Ties the threads of a working process to its worker's life, and gives back what it holds when that stops."""

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import redis
from dramatiq import common
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker.delivery import Delivery
from service.broker.server_check import problems_of
from service.queues import QUEUES
from service.settings import get_settings

if TYPE_CHECKING:
    from service.broker.redis_broker import RedisBroker

CLOSE_SECONDS = 10.0

logger = logging.getLogger(__name__)


class WorkerLife(Middleware):
    """Stands last in the chain: what it notes of a job's start is as near to it as can be."""

    def __init__(self, broker: "RedisBroker") -> None:
        self._broker = broker

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        _refuse_unknown_queues(worker.consumer_whitelist or ())
        self._check_server()
        self._broker.draining = False
        self._broker.slots.threads = worker.worker_threads
        for part in (self._broker.wakeups, self._broker.settler, self._broker.renewal):
            part.start()

    def _check_server(self) -> None:
        try:
            problems = problems_of(self._broker.client)
        except redis.RedisError:
            return  # the consumers say so, and go on trying
        for problem in problems:
            logger.warning("Redis at %s: %s", self._broker.where, problem)
        if problems and get_settings().redis_check == "refuse":
            _end("CALLBOARD_REDIS_CHECK=refuse: the worker does not start on this server")

    def before_process_message(self, broker: Broker, message: Any) -> None:
        message.thread_id = threading.get_ident()
        self._broker.holdings[message.lease.queue].started(message)

    def before_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._broker.draining = True
        # What waits for a thread will get none: others may start it at once.
        waiting: list[Delivery] = [item.message for item in cast("Any", common).iter_queue(worker.work_queue)]
        self._broker.release(waiting)
        for _ in waiting:
            worker.work_queue.task_done()

    def after_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._broker.settler.close(CLOSE_SECONDS)
        self._broker.renewal.stop()
        self._broker.wakeups.stop()


def _refuse_unknown_queues(names: Iterable[str]) -> None:
    if unknown := sorted(set(names) - QUEUES.keys()):
        _end(f"Unknown queue {', '.join(unknown)}; known queues: {', '.join(QUEUES)}")


def _end(message: str) -> None:
    # An error of a hook is logged and passed over by Dramatiq; this is meant to end the process.
    print(message, file=sys.stderr)
    sys.exit(os.EX_CONFIG)
