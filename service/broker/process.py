"""What one process has of the broker: settings, connections, a name, and what it holds."""

import os
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from socket import gethostname
from typing import Any, ClassVar, cast
from uuid import uuid4
from weakref import WeakSet

import redis
from dramatiq.middleware import Middleware
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.broker.backlog import Backlog
from service.broker.connections import leaving_replicas, may_have_been_carried_out
from service.broker.holdings import Holdings
from service.broker.hooks import Hooks
from service.broker.producer import Producer
from service.broker.slots import Slots
from service.broker.wakeups import Wakeups
from service.broker.wire import Wire
from service.errors import BrokerUnavailable, QueueFull
from service.settings import Settings, mask

#: None: each thread has one at most. The client's own limit, 100, is passed by a worker of all queues.
MAX_CONNECTIONS = 2**31 - 1

_all: "WeakSet[Process]" = WeakSet()


class Process(Hooks):
    """Reads its settings, and connects, when it is first used: importing an actor needs neither."""

    #: Properties that are made when they are first asked for, and belong to the process that asked.
    of_one_process: ClassVar[tuple[str, ...]] = ("client", "wire", "wakeups", "backlog")

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self._settings = settings
        self._of_parent: object = None
        self._begin()
        super().__init__(middleware)
        _all.add(self)

    def _begin(self) -> None:
        """Start with what each process has of its own."""
        self.worker_id = _name_of_this_process()
        self.producer = Producer()
        self.slots = Slots()
        self.holdings: dict[str, Holdings] = defaultdict(Holdings)
        self.draining = False

    def begin_after_fork(self) -> None:
        """Leave the connections to the parent, and the locks that its threads held: they do not live on here."""
        kept = {name: self.__dict__.pop(name, None) for name in self.of_one_process}
        self._of_parent = (kept, self._of_parent)  # nothing of it is closed here
        self._begin()

    @cached_property
    def namespace(self) -> str:
        return self._settings().namespace

    @cached_property
    def client(self) -> Any:
        """The Redis client, whose own types say of each reply that it may be awaitable, and so help nobody.

        A command is never repeated by it: what may be repeated is decided by the caller.
        """
        settings = self._settings()
        client = cast("Any", redis.Redis).from_url(
            settings.require_redis_url(),
            socket_timeout=settings.redis_timeout_seconds,
            socket_connect_timeout=settings.redis_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            max_connections=MAX_CONNECTIONS,
        )
        client.connection_pool.connection_class = leaving_replicas(client.connection_pool.connection_class)
        return client

    @cached_property
    def wire(self) -> Wire:
        return Wire(self.client, self.namespace, self.worker_id, self.max_message_bytes)

    @cached_property
    def max_message_bytes(self) -> int:
        return self._settings().max_message_bytes

    @cached_property
    def max_payload_bytes(self) -> int:
        return self._settings().max_payload_bytes

    @cached_property
    def backlog(self) -> Backlog:
        return Backlog(self, self._settings().unstored_mb * 1024 * 1024)

    @cached_property
    def wakeups(self) -> Wakeups:
        return Wakeups(self.client, f"{self.namespace}:wake:{self.worker_id}", self._cancelled)

    def _cancelled(self, queue: str, entry: str, token: str) -> None:
        """Redis has said that a delivery is cancelled. Who holds none has nothing to end."""

    @property
    def where(self) -> str:
        """Host and port of the Redis server, for messages."""
        options = self.client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    @contextmanager
    def reaching(self) -> Generator[None]:
        """Raise BrokerUnavailable for what Redis says within it."""
        try:
            yield
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: redis.RedisError, *, may_be_stored: bool | None = None) -> BrokerUnavailable:
        """Return the error of a send for one of Redis, which tells by itself whether it may be stored if not said."""
        if str(error).startswith("FULL "):
            return QueueFull(f"{str(error).removeprefix('FULL ')} (CALLBOARD_UNSTORED_MB): is the projector up?")
        if may_be_stored is None:
            may_be_stored = may_have_been_carried_out(error)
        return BrokerUnavailable(f"Redis at {self.where} can't be used: {mask(error)}", may_be_stored=may_be_stored)


def _name_of_this_process() -> str:
    """Host, process id and a number: no two processes have the same, and who reads a log can find it."""
    host = "".join(
        letter for letter in gethostname()[:64] if (letter.isascii() and letter.isalnum()) or letter in ".-_"
    )
    return f"{host}:{os.getpid()}:{uuid4().hex[:8]}"


def _begin_all_after_fork() -> None:
    for broker in list(_all):
        broker.begin_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_after_fork)
