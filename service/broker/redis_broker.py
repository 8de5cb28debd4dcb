"""The broker: a Dramatiq broker whose every move of a message is one script on the server's own time.

What happens in Redis is in `scripts/`, how they are called in `wire.py`; here is how a process uses them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic, sleep
from typing import Any, cast
from uuid import UUID, uuid4

import redis
from dramatiq.actor import Actor
from dramatiq.broker import Broker, Consumer
from dramatiq.errors import ActorNotFound, QueueJoinTimeout
from dramatiq.message import Message
from dramatiq.middleware import Interrupt, Middleware, MiddlewareError
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.broker.consumer import QueueConsumer
from service.broker.delivery import Delivery, Lease
from service.broker.holdings import Holdings
from service.broker.link import Link
from service.broker.messages import (
    FORMAT,
    check_place,
    decode_fields,
    encode_fields,
    format_of,
    message_of,
)
from service.broker.outcome import Failure
from service.broker.producer import Producer
from service.broker.renewal import Renewal
from service.broker.settlement import Settlement, dead, left_to_others, released, settlement_of
from service.broker.settler import Settler
from service.broker.slots import Slots
from service.broker.wakeups import Wakeups
from service.broker.wire import Row, Wire
from service.broker.worker_life import WorkerLife
from service.errors import BrokerUnavailable, DeclarationError, PayloadError, UnreadableMessage
from service.queues import QUEUES, policy_of
from service.settings import Settings, mask

#: Where a message of an actor that this process does not know says nothing.
DEFAULT_PRIORITY = 5
DEFAULT_MAX_DELIVERIES = 3
SEND_BATCH = 500
UNKNOWN_ACTOR_DELAY_MS = 2000
#: How often to ask for work while nothing can wake this process.
UNSUBSCRIBED_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of the messages of one `send_many`: the stored ones, and the others with the reason."""

    stored: list[Message[Any]]
    failed: list[tuple[Message[Any], BrokerUnavailable]]


class RedisBroker(Broker):
    """Reads its settings, and connects, when it is first used: importing an actor needs neither."""

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self.worker_id = uuid4().hex
        self.aliases: dict[str, str] = {}
        self.slots = Slots()
        self.holdings: dict[str, Holdings] = defaultdict(Holdings)
        self.draining = False
        self._settings = settings
        self._producer = Producer()
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        self.life = WorkerLife(self)
        super().__init__(middleware=[*middleware, self.life])
        self.queues: dict[str, None] = {}

    @cached_property
    def namespace(self) -> str:
        return self._settings().namespace

    @cached_property
    def client(self) -> Any:
        """The Redis client, whose own types say of each reply that it may be awaitable, and so help nobody.

        A command is never repeated by it: what may be repeated is decided by the caller.
        """
        settings = self._settings()
        return cast("Any", redis.Redis).from_url(
            settings.require_redis_url(),
            socket_timeout=settings.redis_timeout_seconds,
            socket_connect_timeout=settings.redis_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )

    @cached_property
    def wire(self) -> Wire:
        return Wire(self.client, self.namespace, self.worker_id, self._settings().max_message_bytes)

    @cached_property
    def link(self) -> Link:
        return Link(where=self.where)

    @cached_property
    def wakeups(self) -> Wakeups:
        return Wakeups(self.client, f"{self.namespace}:wake:{self.worker_id}")

    @cached_property
    def settler(self) -> Settler:
        return Settler(self.settle, is_idle=lambda: self.slots.is_idle, give_up=self._forget)

    @cached_property
    def renewal(self) -> Renewal:
        return Renewal(self.holdings, self.renew, min(map(self._lease_seconds, QUEUES)) / 3)

    @property
    def where(self) -> str:
        """Host and port of the Redis server, for messages."""
        options = self.client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    # Declaring

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue of the table. Raises DeclarationError for any other."""
        policy_of(queue_name)
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

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

    # Sending

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send a message, `delay` in milliseconds. Raises BrokerUnavailable."""
        self.emit_before("enqueue", message, delay)
        self.send(message, delay_ms=delay)
        self.emit_after("enqueue", message, delay)
        return message

    def send(self, message: Message[Any], *, delay_ms: int | None = None, once_within_seconds: int = 0) -> bool:
        """Send a message, and return whether it was stored.

        Of several sends of one message id within `once_within_seconds`, whoever makes them, the first is stored.
        Raises BrokerUnavailable.
        """
        return self._send_rows(message.queue_name, [self._row(message, delay_ms)], once_within_seconds)

    def send_many(self, messages: Sequence[Message[Any]], *, delay_ms: int | None = None) -> SendReport:
        """Send messages in few round trips, and report which are stored. Raises nothing for an outage."""
        by_queue: dict[str, list[Message[Any]]] = defaultdict(list)
        for message in messages:
            by_queue[message.queue_name].append(message)
        report = SendReport([], [])
        for queue, own in by_queue.items():
            for start in range(0, len(own), SEND_BATCH):
                batch = own[start : start + SEND_BATCH]
                for message in batch:
                    self.emit_before("enqueue", message, delay_ms)
                try:
                    self._send_rows(queue, [self._row(message, delay_ms) for message in batch])
                except BrokerUnavailable as error:
                    report.failed.extend((message, error) for message in batch)
                    continue
                report.stored.extend(batch)
                for message in batch:
                    self.emit_after("enqueue", message, delay_ms)
        return report

    def _send_rows(self, queue: str, rows: Sequence[Row], once_within_seconds: int = 0) -> bool:
        try:
            return self.wire.enqueue(queue, rows, self._producer.next_send(), once_within_seconds)
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def _row(self, message: Message[Any], delay_ms: int | None) -> Row:
        data = message.encode()
        if len(data) > (most := self._settings().max_message_bytes):
            problem = f"makes a message of {len(data)} bytes; the limit is {most} (CALLBOARD_MAX_MESSAGE_BYTES)"
            raise PayloadError(message.actor_name, [("", problem)])
        UUID(message.message_id)  # the database's key: anything else would fail out of the sender's sight
        actor = self._known_actor(message.actor_name)
        priority = int(message.options.get("priority", actor.priority if actor else DEFAULT_PRIORITY))
        return Row(
            entry=message.message_id,
            actor=message.actor_name,
            priority=min(max(priority, 0), 9),
            delay_ms=None if delay_ms is None else max(int(delay_ms), 0),
            attempt=int(message.options.get("retries", 0)) + 1,
            max_deliveries=actor.options.get("max_deliveries", DEFAULT_MAX_DELIVERIES)
            if actor
            else DEFAULT_MAX_DELIVERIES,
            data=data,
        )

    def _known_actor(self, name: str) -> Actor[..., Any] | None:
        return cast("dict[str, Actor[..., Any]]", self.actors).get(self.aliases.get(name, name))

    # Working

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer. The table of queues bounds what it holds, whatever `prefetch` says."""
        return QueueConsumer(self, queue_name, timeout)

    def fetch(self, queue: str, count: int) -> tuple[list[Delivery], float]:
        """Lease up to `count` messages. Returns them, and the seconds after which to ask again where there is none.

        Raises redis.RedisError.
        """
        if self.draining:
            return [], UNSUBSCRIBED_POLL_SECONDS
        lease_seconds = self._lease_seconds(queue)
        poll_seconds = lease_seconds / 3
        wakeable_ms = int(poll_seconds * 1000) + 1000 if self.wakeups.subscribed else 0
        if not wakeable_ms:
            poll_seconds = min(poll_seconds, UNSUBSCRIBED_POLL_SECONDS)
        fetched = self.wire.fetch(queue, count, lease_ms=int(lease_seconds * 1000), wakeable_ms=wakeable_ms)
        if fetched.soonest_ms is not None:
            poll_seconds = min(poll_seconds, fetched.soonest_ms / 1000)
        self.holdings[queue].add([lease for lease, _, _ in fetched.messages])
        opened = [self._open(*message) for message in fetched.messages]
        deliveries = [delivery for delivery in opened if delivery]
        if fetched.messages and not deliveries:
            poll_seconds = 0.0  # none of these can run here, and behind them there may be others
        return deliveries, poll_seconds

    def pass_on(self, queue: str) -> None:
        """Call another worker for what this one was called for, and has no slot to run. Raises redis.RedisError."""
        self.wire.fetch(queue, 0, lease_ms=0, wakeable_ms=0)

    def _open(self, lease: Lease, actor_name: str, data: bytes) -> Delivery | None:
        try:
            return self._read(lease, actor_name, data)
        except UnreadableMessage as error:
            failure = Failure("unreadable", str(error), "")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a message, those fetched with it go on
            failure = Failure.of(error)
        self.logger.error("A message can't be run and is a dead letter: %s", failure.message)
        self.settler.add(dead(lease, actor_name, failure))
        return None

    def _read(self, lease: Lease, actor_name: str, data: bytes) -> Delivery | None:
        fields = decode_fields(data)
        if (given := format_of(fields)) > FORMAT:
            what = f"The message has the format {given}, and this release reads up to {FORMAT}"
            if self._is_left_to_others(lease, actor_name, fields, what):
                return None
            failure = Failure("newer-format", f"{what}: no worker of a newer release took it in time", "")
            self.settler.add(dead(lease, actor_name, failure, _without_wait(fields)))
            return None
        message = message_of(fields)
        check_place(message, lease.queue, lease.entry)
        message.options.pop("eta", None)  # Redis has waited for it
        actor = self._known_actor(message.actor_name)
        delivery = Delivery(message, lease)
        if actor is None:
            if self._is_left_to_others(lease, message.actor_name, fields, f"No actor {message.actor_name!r} here"):
                return None
            delivery.dead_letter = _without_wait(fields)
        elif actor.options.get("max_deliveries", lease.max_deliveries) != lease.max_deliveries:
            # The sender may not have known the actor.
            delivery.lease = lease._replace(max_deliveries=actor.options["max_deliveries"])
            self.holdings[lease.queue].add([delivery.lease])
        return delivery

    def _is_left_to_others(self, lease: Lease, actor_name: str, fields: dict[str, Any], what: str) -> bool:
        # In a rolling deployment a worker of the next release can run it: it gets its chance first.
        options = fields["options"]
        waited = options.get("unknown_for_ms")
        waited = waited if isinstance(waited, int | float) and waited >= 0 else 0
        if waited >= self._settings().unknown_actor_seconds * 1000:
            return False
        options["unknown_for_ms"] = waited + UNKNOWN_ACTOR_DELAY_MS
        self.logger.warning("%s: the job is left to others for a while", what)
        self.settler.add(left_to_others(lease, actor_name, encode_fields(fields), UNKNOWN_ACTOR_DELAY_MS))
        return True

    def finish(self, delivery: Delivery) -> None:
        """Take a delivery's outcome; it is settled soon. Never raises for an outage."""
        queue = delivery.lease.queue
        for waiting in self.slots.finished(queue):
            self.wakeups.wake(waiting)
        try:
            settlement = settlement_of(delivery)
        except Exception as error:  # noqa: BLE001 - what can't be stored for a retry must not stay with this worker
            settlement = dead(delivery.lease, delivery.actor_name, Failure.of(error))
        self.settler.add(settlement)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what was fetched and not started: to its place, and with no attempt counted."""
        for delivery in deliveries:
            self.slots.give_back(delivery.lease.queue)
            self.settler.add(released(delivery))

    def settle(self, queue: str, batch: Sequence[Settlement]) -> None:
        """Settle entries of one queue now. Raises redis.RedisError."""
        refused = self.wire.settle(queue, batch)
        self.holdings[queue].remove([settlement.lease for settlement in batch])
        for entry in refused:
            self.logger.warning("The lease had ended: the outcome of %s is refused", entry)

    def _forget(self, settlement: Settlement) -> None:
        self.holdings[settlement.lease.queue].remove([settlement.lease])

    def renew(self, queue: str, leases: Sequence[Lease]) -> list[str]:
        """Extend leases of one queue. Returns the entries that are lost. Raises redis.RedisError."""
        return self.wire.renew(queue, leases, lease_ms=int(self._lease_seconds(queue) * 1000))

    def _lease_seconds(self, queue: str) -> float:
        return self._settings().lease_seconds or policy_of(queue).lease_seconds

    # Looking

    def find_record(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job whose final state is not in the database yet: an event of `events.read`.

        Raises BrokerUnavailable.
        """
        try:
            return self.wire.find(job_id)
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def ping(self) -> None:
        """Raise BrokerUnavailable where Redis does not answer."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has nothing left. For tests. Raises QueueJoinTimeout."""
        deadline = None if timeout is None else monotonic() + timeout / 1000
        while self.wire.backlog(queue_name):
            if deadline is not None and monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            sleep(interval / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop everything of a queue but its history. For tests."""
        self.wire.purge(queue_name)

    def flush_all(self) -> None:
        """Drop everything of all declared queues but their history. For tests."""
        for queue in self.queues:
            self.flush(queue)

    def close(self) -> None:
        if "wire" in self.__dict__:
            self.wire.close()
        if "client" in self.__dict__:
            self.client.close()

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook. A MiddlewareError ends the signal; others are logged."""
        for hook in self._hooks_of(f"before_{signal}"):
            try:
                hook(self, *args, **kwargs)
            except MiddlewareError:
                raise
            except Exception:
                self.logger.critical("Unexpected failure in before_%s of %r.", signal, hook, exc_info=True)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook, the last first. Errors are logged."""
        for hook in reversed(self._hooks_of(f"after_{signal}")):
            try:
                hook(self, *args, **kwargs)
            except (Exception, Interrupt):  # a time limit may interrupt a job that has just ended
                self.logger.critical("Unexpected failure in after_%s of %r.", signal, hook, exc_info=True)

    def add_middleware(self, middleware: Middleware, **position: Any) -> None:
        """Add a middleware, as in Dramatiq."""
        super().add_middleware(middleware, **position)
        self._hooks.clear()

    def _hooks_of(self, name: str) -> list[Callable[..., None]]:
        # Most middleware has few hooks, and a job meets four signals: only those that do something are called.
        hooks = self._hooks.get(name)
        if hooks is None:
            base = getattr(Middleware, name)
            own = [middleware for middleware in self.middleware if getattr(type(middleware), name, base) is not base]
            hooks = self._hooks[name] = [getattr(middleware, name) for middleware in own]
        return hooks

    def _unavailable(self, error: redis.RedisError) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"Redis at {self.where} can't be used: {mask(error)}", may_be_stored=_may_have_been_carried_out(error)
        )


def _without_wait(fields: dict[str, Any]) -> bytes:
    """The message as it was before it was left to others; empty where it never was."""
    return encode_fields(fields) if fields["options"].pop("unknown_for_ms", None) is not None else b""


def _may_have_been_carried_out(error: redis.RedisError) -> bool:
    if isinstance(error, redis.BusyLoadingError | redis.AuthenticationError):
        return False  # the server's own refusals, which the client counts among the errors of the connection
    # Only a connection that was there when the command went out leaves it open whether the server has done it.
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and " connecting to " not in str(error)
