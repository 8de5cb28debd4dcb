"""The broker: a Dramatiq broker whose every move of a message is one script on the server's own time.

What happens in Redis is in `scripts/`, how they are called in `wire.py`; here is how a process uses them.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from socket import gethostname
from threading import Lock
from time import monotonic, sleep
from typing import Any, cast
from uuid import uuid4
from weakref import WeakSet

import redis
from dramatiq.actor import Actor
from dramatiq.broker import Broker, Consumer
from dramatiq.errors import ActorNotFound, QueueJoinTimeout
from dramatiq.message import Message
from dramatiq.middleware import Interrupt, Middleware, MiddlewareError
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.broker.batch_send import BatchSend, SendReport
from service.broker.connections import leaving_replicas, may_have_been_carried_out
from service.broker.consumer import QueueConsumer
from service.broker.delivery import Delivery, Lease
from service.broker.holdings import Holdings
from service.broker.intake import Intake
from service.broker.link import Link
from service.broker.notes import Note, Notes
from service.broker.obituaries import Obituaries
from service.broker.once import remembered
from service.broker.outcome import Failure, Reason
from service.broker.outgoing import FollowUp, collecting
from service.broker.producer import Producer
from service.broker.relay import ONCE_WITHIN_SECONDS, Relay
from service.broker.renewal import Renewal
from service.broker.rows import row_of
from service.broker.sender import INSIST_SECONDS, Sender
from service.broker.settlement import Settlement, dead, released, settlement_of, unreceived
from service.broker.settler import BATCH, Settler
from service.broker.slots import Slots
from service.broker.wakeups import Wakeups
from service.broker.wire import Row, Wire
from service.broker.worker_life import WorkerLife
from service.errors import BrokerUnavailable, DeclarationError
from service.queues import QUEUES, policy_of
from service.settings import Settings, mask

#: How often to ask for work while nothing can wake this process.
UNSUBSCRIBED_POLL_SECONDS = 1.0
#: How long to try to settle what is left when the work ends.
CLOSE_SECONDS = 10.0
#: None: each thread has one at most. The client's own limit, 100, is passed by a worker of all queues.
MAX_CONNECTIONS = 2**31 - 1


#: Begins the names of actors that are part of the service: nobody sends them by name.
OWN_ACTORS = "callboard."
#: Properties that are made when they are first asked for, and belong to the process that asked.
OF_ONE_PROCESS = ("client", "wire", "intake", "link", "wakeups", "settler", "relay", "notes", "renewal", "obituaries")
_all: "WeakSet[RedisBroker]" = WeakSet()


class RedisBroker(Broker):
    """Reads its settings, and connects, when it is first used: importing an actor needs neither."""

    def __init__(self, settings: Callable[[], Settings], middleware: list[Middleware]) -> None:
        self.aliases: dict[str, str] = {}
        self._settings = settings
        self._of_parent: object = None
        self._begin()
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        self.life = WorkerLife(self)
        super().__init__(middleware=[*middleware, self.life])
        self.queues: dict[str, None] = {}
        _all.add(self)

    def _begin(self) -> None:
        """Start with what each process has of its own."""
        self.worker_id = _name_of_this_process()
        self.producer = Producer()
        self.sender = Sender(self)
        self.slots = Slots()
        self.holdings: dict[str, Holdings] = defaultdict(Holdings)
        self.draining = False
        self._working = False
        self._working_lock = Lock()
        #: What is settled or is not: the server was asked, and its reply never came.
        self._maybe_settled: set[Lease] = set()

    def begin_after_fork(self) -> None:
        """Leave the connections to the parent, and the locks that its threads held: they do not live on here."""
        kept = {name: self.__dict__.pop(name, None) for name in OF_ONE_PROCESS}
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
    def intake(self) -> Intake:
        return Intake(self._known_actor, self.settler.add, self._settings().unknown_actor_seconds)

    @cached_property
    def link(self) -> Link:
        return Link(where=self.where)

    @cached_property
    def wakeups(self) -> Wakeups:
        return Wakeups(self.client, f"{self.namespace}:wake:{self.worker_id}")

    @cached_property
    def settler(self) -> Settler:
        return Settler(self.settle, lambda: self.slots.is_idle, self._forget, self.slots.may_end_soon)

    @cached_property
    def relay(self) -> Relay:
        return Relay(self.wire.outgoing, self._store, self.wire.remove_outgoing)

    def _store(self, nonce: str, follow_up: FollowUp) -> None:
        self.wire.store(nonce, follow_up, ONCE_WITHIN_SECONDS)

    @cached_property
    def notes(self) -> Notes:
        return Notes(self._note)

    def _note(self, queue: str, notes: list[Note]) -> None:
        self.wire.note(queue, notes)

    @cached_property
    def renewal(self) -> Renewal:
        return Renewal(self.holdings, self.renew, min(map(self._lease_seconds, QUEUES)) / 3)

    @cached_property
    def obituaries(self) -> Obituaries:
        return Obituaries(self)

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
        """The names and aliases of all actors but our own, in order."""
        names = [*cast("dict[str, Any]", self.actors), *self.aliases]
        return sorted(name for name in names if not name.startswith(OWN_ACTORS))

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
        """Send a message, `delay` in milliseconds. Raises BrokerUnavailable.

        What a typed actor sends goes out when its job has succeeded, in the same step.
        """
        self.emit_before("enqueue", message, delay)
        if (follow_ups := collecting()) is None:
            self.send(message, delay_ms=delay)
        else:
            policy_of(message.queue_name)
            row = self.row(message, delay)
            follow_up = FollowUp(message.queue_name, message.message_id, row.packed())
            # At once, of a unique job, since this one is to know whether it is refused; and where a task or thread
            # sends that has outlived its job.
            if row.unique or not follow_ups.add(follow_up):
                self.send_rows(message.queue_name, [row])
        self.emit_after("enqueue", message, delay)
        return message

    def enqueue_once(self, message: Message[Any], within_seconds: int) -> bool:
        """Send a message unless its id was sent within this time. Returns whether it was stored now.

        Raises BrokerUnavailable.
        """
        self.emit_before("enqueue", message, None)
        is_new = self.send(message, once_within_seconds=within_seconds)
        self.emit_after("enqueue", message, None)
        return is_new

    def send(self, message: Message[Any], *, delay_ms: int | None = None, once_within_seconds: int = 0) -> bool:
        """Send a message, and return whether it was stored.

        Of several sends of one message id within `once_within_seconds`, whoever makes them, the first is stored.
        Raises BrokerUnavailable, JobExists for a unique key that is taken, and DeclarationError for a queue that no
        worker could serve.
        """
        policy_of(message.queue_name)
        rows = [self.row(message, delay_ms)]
        return self.send_rows(message.queue_name, rows, once_within_seconds=once_within_seconds)

    def send_many(self, messages: Sequence[Message[Any]], *, delay_ms: int | None = None) -> SendReport:
        """Send messages in few round trips, and report which are stored. Raises nothing for an outage.

        Raises DeclarationError, with nothing sent, where a queue is not in the table.
        """
        by_queue: dict[str, list[Message[Any]]] = defaultdict(list)
        for message in messages:
            policy_of(message.queue_name)
            by_queue[message.queue_name].append(message)
        report = SendReport()
        for queue, own in by_queue.items():
            BatchSend(self, queue, delay_ms, report).send(own)
        return report

    def send_rows(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int] | None = None, once_within_seconds: int = 0
    ) -> bool:
        """Send rows in one call. Returns whether they were stored. Raises BrokerUnavailable."""
        return self.sender.send_rows(queue, rows, send, once_within_seconds)

    def insisting(self) -> AbstractContextManager[None]:
        """For what follows a job: within it, this thread's sends wait for as long as Redis is out of reach, are stored
        once, and may carry all that is stored of the job.
        """
        return self.sender.insisting()

    def row(self, message: Message[Any], delay_ms: int | None) -> Row:
        """Return a message as it is sent. Raises ValueError for an id that is no UUID, PayloadError for its payload."""
        most_payload_bytes = self.max_message_bytes if self.sender.is_insisting else self.max_payload_bytes
        actor = self._known_actor(message.actor_name)
        return row_of(message, delay_ms, actor, self.max_message_bytes, most_payload_bytes)

    def _known_actor(self, name: str) -> Actor[..., Any] | None:
        return cast("dict[str, Actor[..., Any]]", self.actors).get(self.aliases.get(name, name))

    # Working

    def start(self) -> None:
        """Listen, renew and settle, from threads of their own, until `stop`."""
        with self._working_lock:
            if not self._working:
                self._working = True
                for part in (self.wakeups, self.settler, self.relay, self.renewal, self.obituaries):
                    part.start()

    def stop(self) -> None:
        """Settle what has ended, and let the threads end. A further worker of this process may `start` them again."""
        with self._working_lock:
            if self._working:
                self._working = False
                self.settler.close(CLOSE_SECONDS)
                self.relay.close(CLOSE_SECONDS)
                self.notes.close(CLOSE_SECONDS)
                self.obituaries.stop(CLOSE_SECONDS)
                self.renewal.stop()
                self.wakeups.stop()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer. The table of queues bounds what it holds, whatever `prefetch` says."""
        self.obituaries.serve(queue_name)
        self.start()  # also where no worker of Dramatiq's runs: what a consumer takes is renewed and settled
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
        if fetched.has_outgoing:
            self.relay.call(queue)
        if fetched.soonest_ms is not None:
            poll_seconds = min(poll_seconds, fetched.soonest_ms / 1000)
        if fetched.died:
            self.obituaries.wake()
        self.holdings[queue].add([lease for lease, _, _ in fetched.messages])
        opened = [self.intake.open(*message) for message in fetched.messages]
        deliveries = [delivery for delivery in opened if delivery]
        if fetched.messages and not deliveries:
            poll_seconds = 0.0  # none of these can run here, and behind them there may be others
        return deliveries, poll_seconds

    def pass_on(self, queue: str) -> None:
        """Call another worker for what this one was called for, and has no slot to run. Raises redis.RedisError."""
        self.wire.fetch(queue, 0, lease_ms=0, wakeable_ms=0)

    def take(self, queue: str) -> int:
        """Reserve slots for messages to be fetched, and return their number: 0 where there are none now."""
        slots = self.slots.take(queue)
        self._call(self.slots.count_ended())
        return slots

    def leave_thread(self, delivery: Delivery) -> bool:
        """Say whether a job may run without the thread that began it, which then takes another."""
        may_leave, queues = self.slots.leave(delivery.lease.queue)
        self._call(queues)
        return may_leave

    def finish(self, delivery: Delivery) -> None:
        """Take a delivery's outcome; it is settled soon. Never raises for an outage."""
        queue = delivery.lease.queue
        self._call(self.slots.finished(queue))
        try:
            settlement = settlement_of(delivery)
        except Exception as error:  # noqa: BLE001 - what can't be stored for a retry must not stay with this worker
            settlement = dead(delivery.lease, delivery.actor_name, Failure.of(error), Reason.INVALID)
        actor = self._known_actor(delivery.actor_name)
        options = actor.options if actor else {}
        if delivery.lease.key:
            # At once: what ends before its key is kept would take effect again after a crash.
            self.settler.settle_now(remembered(settlement, options))
        elif options.get("settle_at_once"):
            self.settler.settle_now(settlement)
        else:
            self.settler.add(settlement)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what was fetched and not started: to its place, and with no attempt counted."""
        for delivery in deliveries:
            self.give_back(delivery.lease.queue, 1)
            self.settler.add(released(delivery))

    def give_back(self, queue: str, slots: int) -> None:
        """Free slots of a queue that nothing has come for."""
        self._call([*self.slots.give_back(queue, slots), *self.slots.count_ended()])

    def _call(self, queues: list[str]) -> None:
        for queue in queues:
            self.wakeups.wake(queue)

    def release_unreceived(self, queue: str) -> None:
        """Give back what fetches have leased whose replies never came. Raises redis.RedisError.

        They would come back when their leases end, but as if a worker had died of them.
        """
        held = self.wire.held(queue)
        # Asked second: what was settled meanwhile is in neither, and refused.
        received = {lease.token for lease in self.holdings[queue].all()}
        lost = [unreceived(lease, actor) for lease, actor in held if lease.token not in received]
        for start in range(0, len(lost), BATCH):
            self.wire.settle(queue, lost[start : start + BATCH])

    def begin(self, lease: Lease) -> bool:
        """Note that a suspect begins; waits as long as Redis is out of reach. Returns whether it is still held."""
        while True:
            try:
                return self.wire.begin(lease)
            except redis.RedisError as error:
                self.logger.warning("A suspect can't begin now: %s", error)
                sleep(INSIST_SECONDS)

    def settle(self, queue: str, batch: Sequence[Settlement]) -> None:
        """Settle entries of one queue now. Raises redis.RedisError."""
        leases = [settlement.lease for settlement in batch]
        try:
            refused = self.wire.settle(queue, batch)
        except redis.RedisError as error:
            if may_have_been_carried_out(error):
                self._maybe_settled.update(leases)
            raise
        self.holdings[queue].remove(leases)
        if any(settlement.follow_ups for settlement in batch):
            self.relay.call(queue)
        if any(settlement.outcome == "dead" for settlement in batch):
            self.obituaries.wake()
        repeated = {lease.entry for lease in leases if lease in self._maybe_settled}
        self._maybe_settled.difference_update(leases)
        for entry in refused:
            if entry in repeated:
                self.logger.info("The outcome of %s was settled before, and only the reply was lost", entry)
            else:
                self.logger.warning("The lease had ended: the outcome of %s is refused", entry)

    def _forget(self, settlement: Settlement) -> None:
        self.holdings[settlement.lease.queue].remove([settlement.lease])

    def renew(self, queue: str, leases: Sequence[Lease]) -> list[str]:
        """Extend leases of one queue. Returns the entries that are lost. Raises redis.RedisError."""
        return self.wire.renew(queue, leases, lease_ms=int(self._lease_seconds(queue) * 1000))

    def _lease_seconds(self, queue: str) -> float:
        return self._settings().lease_seconds or policy_of(queue).lease_seconds

    def keep_checkpoint(self, lease: Lease, cursor: str) -> bool:
        """Keep JSON for the next attempt. Returns whether the lease is still held. Raises BrokerUnavailable."""
        try:
            return not self.wire.note(lease.queue, [Note(lease, "checkpoint", cursor)])
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def find_checkpoint(self, lease: Lease) -> str | None:
        """Return the JSON that attempts before have kept, or None. Raises BrokerUnavailable."""
        try:
            return self.wire.checkpoint(lease)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def extend(self, lease: Lease) -> bool:
        """Renew one lease now. Returns whether it is still held. Raises BrokerUnavailable."""
        try:
            return not self.renew(lease.queue, [lease])
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    # Looking

    def find_progress(self, job_id: str, queue: str) -> str | None:
        """Return how far a job that has not ended says it is, JSON, or None. Raises BrokerUnavailable."""
        try:
            return self.wire.progress(queue, job_id)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def find_record(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job whose final state is not in the database yet: an event of `events.read`.

        Raises BrokerUnavailable.
        """
        try:
            return self.wire.find(job_id)
        except redis.RedisError as error:
            raise self.unavailable(error) from error

    def ping(self) -> None:
        """Raise BrokerUnavailable where Redis does not answer."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise self.unavailable(error) from error

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
        self.stop()
        if "wire" in self.__dict__:
            self.wire.close()
        if "client" in self.__dict__:
            self.client.close()

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook. A MiddlewareError ends the signal; others are logged."""
        for hook in self.hooks_of(f"before_{signal}"):
            try:
                hook(self, *args, **kwargs)
            except MiddlewareError:
                raise
            except Exception:
                self.logger.critical("Unexpected failure in before_%s of %r.", signal, hook, exc_info=True)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware that has this hook, the last first. Errors are logged."""
        for hook in reversed(self.hooks_of(f"after_{signal}")):
            try:
                hook(self, *args, **kwargs)
            except (Exception, Interrupt):  # a time limit may interrupt a job that has just ended
                self.logger.critical("Unexpected failure in after_%s of %r.", signal, hook, exc_info=True)

    def add_middleware(self, middleware: Middleware, **position: Any) -> None:
        """Add a middleware, as in Dramatiq."""
        super().add_middleware(middleware, **position)
        self._hooks.clear()

    def hooks_of(self, name: str) -> list[Callable[..., None]]:
        """Return the middleware's hooks of this name that do something, in order."""
        # Most middleware has few hooks, and a job meets four signals: only those that do something are called.
        hooks = self._hooks.get(name)
        if hooks is None:
            base = getattr(Middleware, name)
            all_hooks = [getattr(middleware, name) for middleware in self.middleware]
            # A hook may also be an attribute of the object itself, as of one that wraps another middleware.
            hooks = self._hooks[name] = [hook for hook in all_hooks if getattr(hook, "__func__", hook) is not base]
        return hooks

    def unavailable(self, error: redis.RedisError, *, may_be_stored: bool | None = None) -> BrokerUnavailable:
        """Return the error of a send for one of Redis, which tells by itself whether it may be stored if not said."""
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
