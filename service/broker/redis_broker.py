"""The broker: Dramatiq's Redis broker, with each move of a message and its event in one script.

Dramatiq's scripts still fetch, give back and watch over heartbeats. Sending and settling are ours, so that the history
can't disagree with the queue, and a retry can't be lost between its two halves.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast
from uuid import UUID, uuid4

import redis
from dramatiq.actor import Actor
from dramatiq.broker import Broker, Consumer
from dramatiq.brokers.redis import RedisBroker as StockRedisBroker
from dramatiq.brokers.redis import _scripts  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
from dramatiq.common import current_millis, dq_name
from dramatiq.errors import ActorNotFound
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.broker.consumer import Delivery, QueueConsumer
from service.broker.keys import Keys
from service.broker.link import Link
from service.broker.messages import copy_message
from service.broker.outcome import Dead, RetryLater, Succeeded
from service.broker.scripts import source
from service.broker.slots import Slots
from service.errors import BrokerUnavailable, DeclarationError
from service.queues import QUEUES, policy_of
from service.settings import Settings, mask

#: The scripts of Dramatiq that still move messages.
STOCK_SCRIPTS = cast("dict[str, bytes]", _scripts)


class RedisBroker(StockRedisBroker):
    """Reads its settings, and connects, when it is first used: importing an actor needs neither."""

    # Dead workers are looked for in one of ten commands: an idle worker sends some a second.
    maintenance_chance = 100_000
    dead_message_ttl = 7 * 24 * 3600 * 1000

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self.broker_id = str(uuid4())
        self.aliases: dict[str, str] = {}
        self.slots = Slots()
        self._settings = settings
        Broker.__init__(self, middleware=[*middleware, _WorkerThreads()])
        self.queues: set[str] = set()

    @cached_property
    def namespace(self) -> str:
        return self._settings().namespace

    @cached_property
    def heartbeat_timeout(self) -> int:
        lease_seconds = self._settings().lease_seconds or max(policy.lease_seconds for policy in QUEUES.values())
        return int(lease_seconds * 1000)

    @cached_property
    def client(self) -> Any:
        """The Redis client, whose own types say of each reply that it may be awaitable, and so help nobody.

        A command is never repeated by it: what may be repeated is decided by the caller."""
        settings = self._settings()
        return cast("Any", redis.Redis).from_url(
            settings.require_redis_url(),
            socket_timeout=settings.redis_timeout_seconds,
            socket_connect_timeout=settings.redis_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )

    @cached_property
    def scripts(self) -> dict[str, Any]:
        sources: dict[str, Any] = {**STOCK_SCRIPTS, **{name: source(name) for name in ("enqueue", "start", "settle")}}
        return {name: self.client.register_script(text) for name, text in sources.items()}

    @cached_property
    def link(self) -> Link:
        return Link(where=self.where)

    @property
    def where(self) -> str:
        """Host and port of the Redis server, for messages."""
        options = self.client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue of the table. Raises DeclarationError for any other."""
        policy_of(queue_name)
        super().declare_queue(queue_name)

    def is_named(self, name: str) -> bool:
        """Whether an actor has this name, or answers to it."""
        return name in cast("dict[str, Any]", self.actors) or name in self.aliases

    @property
    def known_types(self) -> list[str]:
        """The names and aliases of all actors, in order."""
        return sorted([*cast("dict[str, Any]", self.actors), *self.aliases])

    def declare_alias(self, alias: str, actor: Actor[..., Any]) -> None:
        """Let an actor answer to a further name. Raises DeclarationError where the name is taken."""
        if self.is_named(alias):
            raise DeclarationError(f"The alias {alias!r} of {actor.actor_name!r} is the name of another actor")
        self.aliases[alias] = actor.actor_name

    def get_actor(self, actor_name: str) -> Actor[..., Any]:
        """Look an actor up by its name or an alias. Raises dramatiq's ActorNotFound."""
        try:
            return cast("dict[str, Actor[..., Any]]", self.actors)[self.aliases.get(actor_name, actor_name)]
        except KeyError:
            raise ActorNotFound(actor_name) from None

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer. `prefetch` bounds what is held of a delay queue; the table of queues bounds the rest."""
        return QueueConsumer(self, queue_name, prefetch, timeout)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send a message, `delay` in milliseconds. Raises BrokerUnavailable."""
        self.send(message, delay_ms=delay)
        return message

    def send(self, message: Message[Any], *, delay_ms: int | None = None, once_within_seconds: int = 0) -> bool:
        """Send a message, and return whether it was stored.

        Of several sends of one message id within `once_within_seconds`, whoever makes them, the first is stored.
        Raises BrokerUnavailable.
        """
        UUID(message.message_id)  # the database's key: anything else would fail out of the sender's sight
        queue = message.queue_name if delay_ms is None else dq_name(message.queue_name)
        copy = self._copy_for(message, queue, delay_ms)
        state = "pending" if delay_ms is None else "scheduled"
        self.emit_before("enqueue", copy, delay_ms)
        keys = Keys(self.namespace, message.queue_name)
        stored = self._run_for_sender(
            "enqueue",
            keys=[
                keys.job(message.message_id),
                keys.events,
                keys.list_of(queue),
                keys.messages_of(queue),
                keys.sent(message.message_id),
            ],
            args=[
                copy.options["redis_message_id"],
                copy.encode(),
                once_within_seconds,
                state,
                *_identity(message),
            ],
        )
        self.emit_after("enqueue", copy, delay_ms)
        return bool(stored)

    def fetch(self, queue: str, count: int) -> list[bytes]:
        """Take up to `count` messages off a queue and hold them. Raises redis.RedisError."""
        return self._stock("fetch", queue, count)

    def requeue(self, queue: str, message_ids: list[str]) -> None:
        """Give back messages that this process holds. Raises redis.RedisError."""
        self._stock("requeue", queue, *message_ids)

    def record_start(self, delivery: Delivery) -> None:
        """Record that a job runs. Raises redis.RedisError."""
        keys = Keys(self.namespace, delivery.queue_name)
        args = [*_identity(delivery), "attempt", delivery.attempt]
        self.scripts["start"](keys=[keys.job(delivery.message_id), keys.events], args=args)

    def settle(self, delivery: Delivery, queue: str) -> bool:
        """Carry out a delivery's outcome. Returns False where this process did not hold it any more.

        `queue` is the one that it was fetched from: its own, or its delay queue. Raises redis.RedisError.
        """
        own = delivery.queue_name.removesuffix(".DQ")
        keys = Keys(self.namespace, own)
        identity = _identity(delivery)
        target, target_messages = keys.dead, keys.dead_messages
        args: list[str | bytes | int] = [delivery.redis_message_id]
        match delivery.outcome:
            case None:
                args += ["done", "", "", ""]
            case Succeeded(result):
                args += ["done", "", "", "succeeded", *identity, "result", result]
            case Dead(failure):
                args += ["dead", "", delivery.encode(), "dead", *identity, "error", failure.to_json()]
            case RetryLater(message, delay_ms, failure):
                delayed = dq_name(own)
                target, target_messages = keys.list_of(delayed), keys.messages_of(delayed)
                copy = self._copy_for(message, delayed, delay_ms)
                args += ["retry", copy.options["redis_message_id"], copy.encode(), "retrying"]
                args += [*identity, "error", failure.to_json()]
        held = self.scripts["settle"](
            keys=[
                keys.job(delivery.message_id),
                keys.events,
                keys.held_by(self.broker_id, queue),
                keys.messages_of(queue),
                target,
                target_messages,
            ],
            args=args,
        )
        return bool(held)

    def find_record(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job whose final state is not in the database yet. Raises BrokerUnavailable."""
        try:
            with self.client.pipeline(transaction=False) as pipeline:
                for queue in QUEUES:
                    pipeline.hgetall(Keys(self.namespace, queue).job(job_id))
                found = [record for record in pipeline.execute() if record]
        except redis.RedisError as error:
            raise self._unavailable(error) from error
        if not found:
            return None
        return {key.decode(): value.decode() for key, value in found[0].items()}

    def ping(self) -> None:
        """Raise BrokerUnavailable where Redis does not answer."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()

    def _stock(self, command: str, queue: str, *args: Any) -> Any:
        return cast("Any", self)._dispatch(command)(queue, *args)

    def _copy_for(self, message: Message[Any], queue: str, delay_ms: int | None) -> Message[Any]:
        # A retry is a further message of the same job, so the message id alone can't name it in Redis.
        options: dict[str, Any] = {"redis_message_id": str(uuid4())}
        if delay_ms is not None:
            options["eta"] = current_millis() + delay_ms
        return copy_message(message, queue_name=queue, options=options)

    def _run_for_sender(self, script: str, *, keys: list[str], args: list[Any]) -> Any:
        try:
            return self.scripts[script](keys=keys, args=args)
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: redis.RedisError) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"Redis at {self.where} can't be used: {mask(error)}", may_be_stored=_may_have_been_carried_out(error)
        )


def _may_have_been_carried_out(error: redis.RedisError) -> bool:
    if isinstance(error, redis.BusyLoadingError | redis.AuthenticationError):
        return False  # the server's own refusals, which the client counts among the errors of the connection
    # Only a connection that was there when the command went out leaves it open whether the server has done it.
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and " connecting to " not in str(error)


def _identity(message: Any) -> list[str]:
    return ["job_id", message.message_id, "type", message.actor_name, "queue", message.queue_name.removesuffix(".DQ")]


class _WorkerThreads(Middleware):
    """Tells the slots how many threads the worker has."""

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        assert isinstance(broker, RedisBroker)
        broker.slots.threads = worker.worker_threads
