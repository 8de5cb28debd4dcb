"""Ties the threads of a working process to its worker's life, and gives back what it holds when that stops."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import redis
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware, SkipMessage

from service.broker.pid_one import deaf_shell
from service.broker.server_check import problems_of
from service.broker.stop import Stop
from service.broker.work_queue import WorkQueue
from service.queues import QUEUES
from service.settings import get_settings

if TYPE_CHECKING:
    from service.broker.working import Working

INTERRUPTION_SECONDS = 1.0

logger = logging.getLogger(__name__)


class WorkerLife(Middleware):
    """Stands last in the chain: what it notes of a job's start and end is as near to them as can be."""

    def __init__(self, broker: "Working") -> None:
        self._broker = broker
        #: The queue of the worker that runs on this broker, if one does.
        self.work_queue: WorkQueue | None = None
        self.stop = Stop(broker, self.release_unstarted)

    @property
    def actor_options(self) -> set[str]:
        return {"settle_at_once"}

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        _refuse_queues(worker.consumer_whitelist or (), self._broker.queues)
        self._check_server()
        worker.work_queue = self.work_queue = WorkQueue()  # before its threads take it
        queues = sorted(worker.consumer_whitelist or self._broker.queues)
        self.stop.reset(queues)
        # Dramatiq's own limit does not know what a drain has used of the grace period.
        worker.stop = partial(self.stop.stop_in_time, worker.stop)
        if shell := deaf_shell():
            logger.warning(
                "Process 1 is a shell (%s) that does not pass SIGTERM on: start this worker by `exec`, or without it",
                shell,
            )
        self._broker.slots.threads = worker.worker_threads
        self._broker.start()
        self._broker.presence.start(queues, worker.worker_threads)
        _stop_once()

    def _check_server(self) -> None:
        try:
            problems = problems_of(self._broker.client, self._broker.namespace)
        except redis.RedisError:
            return  # the consumers say so, and go on trying
        for problem in problems:
            logger.warning("Redis at %s: %s", self._broker.where, problem)
        if problems and get_settings().redis_check == "refuse":
            _end("CALLBOARD_REDIS_CHECK=refuse: the worker does not start on this server")

    def before_process_message(self, broker: Broker, message: Any) -> None:
        self._broker.holdings[message.lease.queue].started(message)
        if message.is_cancelled:
            raise SkipMessage

    def after_process_message(
        self, broker: Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        self._broker.holdings[message.lease.queue].finished(message)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self._broker.holdings[message.lease.queue].finished(message)

    def release_unstarted(self) -> None:
        """Give back what waits for a thread, and will get none: others may start it at once."""
        if self.work_queue:
            self._broker.release(self.work_queue.take_all())

    def drop_cancelled(self) -> None:
        """End what is cancelled and waits for a thread."""
        if self.work_queue:
            holdings = self._broker.holdings
            cancelled = self.work_queue.take_all(lambda one: holdings[one.lease.queue].is_cancelled(one.lease))
            self._broker.end_cancelled(cancelled)

    def after_worker_shutdown(self, broker: Broker, worker: Any) -> None:
        self._hand_back()
        self._broker.presence.leave()
        self._broker.stop()
        self._broker.presence.stop()

    def _hand_back(self) -> None:
        """Interrupt what has outlived the grace period, and give it back once it has ended.

        What can't be interrupted is given back all the same: it dies with this process in a moment, and can settle
        nothing any more.
        """
        running = self.stop.interrupt()
        holdings = list(self._broker.holdings.values())
        deadline = time.monotonic() + INTERRUPTION_SECONDS
        while running and any(each.all() for each in holdings) and time.monotonic() < deadline:
            time.sleep(0.01)
        held = {(lease.entry, lease.token) for each in holdings for lease in each.all()}
        self._broker.release([each for each in running if (each.lease.entry, each.lease.token) in held])


def _refuse_queues(names: Iterable[str], declared: Iterable[str]) -> None:
    if unknown := sorted(set(names) - QUEUES.keys()):
        _end(f"Unknown queue {', '.join(unknown)}; known queues: {', '.join(QUEUES)}")
    for name in set(names) - set(declared):
        if QUEUES[name].needs_database:
            # It would wait for ever, and look ready.
            _end(f"The queue {name} can't be served here: it needs DATABASE_URL, and pip install 'callboard[api]'")


def _stop_once() -> None:
    # A second SIGTERM, or SIGHUP of a reload, makes the `dramatiq` command end a worker that is draining: with it, all
    # that it still runs. A worker that must go at once gets SIGKILL.
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, _Once):
            signal.signal(number, _Once(handler))


class _Once:
    """A signal handler of which all instances together call what they stand for once."""

    stopping = False

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _Once.stopping:
            _Once.stopping = True
            self._handler(number, frame)


def _end(message: str) -> None:
    # An error of a hook is logged and passed over by Dramatiq; this is meant to end the process.
    print(message, file=sys.stderr)
    sys.exit(os.EX_CONFIG)
