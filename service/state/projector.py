"""The projector: reads the event streams, stores what happened to each job, logs every transition.

An entry leaves its stream only after its batch is committed, and every event has its number: what is told again changes
nothing. So a projector that is killed at any point loses nothing and, started again, repeats nothing that can be seen.
One works at a time, by a lock in the database that goes with its connection; others stand by.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Event as Flag

import redis
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from service.broker import RedisBroker, backlog, events
from service.broker.keys import Keys
from service.errors import CallboardError
from service.observe.probe import Answers, Probe
from service.queues import QUEUES
from service.settings import Settings
from service.state import event as event_reader
from service.state.database import engine_for, reaching
from service.state.differences import Findings
from service.state.event import Event, Head
from service.state.pruning import Pruning, policies_of
from service.state.reconciler import Reconciler
from service.state.retention import Retention
from service.state.states import STATUS_OF, is_final
from service.state.store import store

#: Entries of each stream that are read together.
BATCH = 2000
#: Events that are stored together, up to the last entry's: one entry has up to 1,000.
EVENTS = 5000
IDLE_BLOCK_MS = 1000
STANDBY_SECONDS = 1.0
MAX_DELAY_SECONDS = 5.0
#: Of a larger batch the transitions are counted in one line: the log must not hold up the table.
TRANSITIONS_LOGGED = 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream, with the events that can be read in it, each by its job's entry in the queue."""

    queue: str
    entry_id: bytes
    events: dict[str, Event]


class Projector:
    """Moves events from Redis to the table of jobs."""

    def __init__(
        self,
        broker: RedisBroker,
        engine: Engine,
        retention: Retention | None = None,
        pruning: Pruning | None = None,
        reconciler: Reconciler | None = None,
        *,
        transitions_logged: int = TRANSITIONS_LOGGED,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._retention = retention
        self._pruning = pruning
        self._reconciler = reconciler
        self._transitions_logged = transitions_logged
        self._streams = {Keys(broker.namespace, queue).events: queue for queue in QUEUES}
        self._lock = zlib.crc32(f"{broker.namespace}:projector".encode())
        self._count = BATCH
        self.is_ready = False

    def run(self, stop: Flag) -> None:
        """Work until `stop` is set, through outages of either server."""
        delay_seconds = 0.5
        while not stop.is_set():
            try:
                with reaching(self._engine), self._engine.connect() as connection:
                    if self._is_the_one(connection):
                        delay_seconds = 0.5
                        self._work(connection, stop)
                    self.is_ready = True
                stop.wait(STANDBY_SECONDS)
            except (CallboardError, redis.RedisError) as error:
                self.is_ready = False
                reason = error if isinstance(error, CallboardError) else f"Redis at {self._broker.where}: {error}"
                logger.error("The projector can't go on (%s); trying again in %.1f s", reason, delay_seconds)
                self._relieve()
                stop.wait(delay_seconds)
                delay_seconds = min(delay_seconds * 2, MAX_DELAY_SECONDS)

    def project_batch(self, connection: Connection, block_ms: int | None = None) -> int:
        """Store up to a batch of events of each stream, and return their number."""
        folded = self._store_folded(connection)
        entries = list(self._read(None if folded else block_ms))
        if not entries:
            return folded
        for group in _groups(entries):
            events_of_group = [event for entry in group for event in entry.events.values()]
            _log_transitions(store(connection, events_of_group), self._transitions_logged)
            self._forget(group)
        # Entries of a single event are read by the thousand, and large ones a few at a time.
        many = sum(len(entry.events) for entry in entries) > 2 * EVENTS
        self._count = max(self._count // 4, 1) if many else min(self._count * 2, BATCH)
        return len(entries) + folded

    def _is_the_one(self, connection: Connection) -> bool:
        won = connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": self._lock}).scalar_one()
        connection.commit()
        return bool(won)

    def _work(self, connection: Connection, stop: Flag) -> None:
        self.is_ready = True
        logger.info("The projector works on %d streams", len(self._streams))
        try:
            while not stop.is_set():
                self.project_batch(connection, IDLE_BLOCK_MS)
                if self._retention:
                    self._retention.step_if_due()
                if self._reconciler:
                    self._reconcile(self._reconciler, connection)
                if self._pruning:
                    self._prune(self._pruning, connection)
            while self.project_batch(connection):  # what came in while the last workers drained
                pass
        finally:
            if not connection.invalidated:
                connection.rollback()
                connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": self._lock})
                connection.commit()

    def _relieve(self) -> None:
        """Keep what can't be stored now from filling Redis."""
        for queue in QUEUES:
            try:
                self._broker.backlog.relieve(queue)
            except redis.RedisError:
                return  # it is Redis that is away

    def _store_folded(self, connection: Connection) -> int:
        """Store some of what was folded while nothing could be stored, and return the number of jobs."""
        stored = 0
        for queue in QUEUES:
            records = self._broker.backlog.folded(queue, EVENTS // 4)
            told = [(entry, event) for entry, record in records for event in _folded_events(entry, record, queue)]
            if told:
                _log_transitions(store(connection, [event for _, event in told]), self._transitions_logged)
            if records:
                self._broker.wire.forget(queue, [(entry.decode(), event.at) for entry, event in told if _ends(event)])
                self._broker.backlog.forget(queue, records)
                self._broker.backlog.relieve(queue)
            stored += len(records)
        return stored

    def _reconcile(self, reconciler: Reconciler, connection: Connection) -> None:
        try:
            reconciler.step_if_due(connection)
        except CallboardError:
            raise
        except Exception as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise
            # It is a check: what happens to jobs must not wait for it.
            connection.rollback()
            reconciler.pause()
            logger.exception("Jobs' rows can't be compared with Redis now")

    def _prune(self, pruning: Pruning, connection: Connection) -> None:
        try:
            pruning.step_if_due(connection)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            # Somebody holds a lock on what is to go: what happens to jobs must not wait for that.
            connection.rollback()
            pruning.pause()
            logger.warning("History can't be pruned now: %s", error.orig)

    def _read(self, block_ms: int | None) -> Iterable[Entry]:
        # Always from the start: what has been stored is no longer there.
        found: list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]] = self._broker.client.xread(
            dict.fromkeys(self._streams, "0"), count=self._count, block=block_ms
        )
        for stream, entries in found:
            for entry_id, fields in entries:
                queue = self._streams[stream.decode()]
                yield Entry(queue, entry_id, _events_of(entry_id, fields, queue))

    def _forget(self, entries: list[Entry]) -> None:
        # The stream last: what is left of it is stored, and forgotten, once more.
        for queue in {entry.queue for entry in entries}:
            own = [entry for entry in entries if entry.queue == queue]
            ended = [(name, event.at) for entry in own for name, event in entry.events.items() if _ends(event)]
            self._broker.wire.forget(queue, ended)
            stream = Keys(self._broker.namespace, queue).events
            self._broker.client.xdel(stream, *[entry.entry_id for entry in own])


def run_projector(settings: Settings, stop: Flag) -> None:
    """Run a projector with the configured broker and database, and its probe. Raises SettingsError."""
    from service.broker import broker

    settings.require_redis_url()
    engine = engine_for(settings.require_database_url())
    pruning = Pruning(policies_of(settings), settings.audit_days)
    findings = Findings()
    projector = Projector(
        broker,
        engine,
        Retention(broker, settings),
        pruning,
        Reconciler(broker, settings, findings),
        transitions_logged=settings.transitions_logged,
    )
    probe = Probe(
        settings.worker_host, settings.worker_port, Answers(lambda: projector.is_ready, metrics=findings.text)
    )
    probe.start()
    projector.run(stop)
    probe.stop()


def _groups(entries: Iterable[Entry]) -> Iterable[list[Entry]]:
    """Divide entries into groups of about EVENTS events."""
    group: list[Entry] = []
    count = 0
    for entry in entries:
        group.append(entry)
        count += len(entry.events)
        if count >= EVENTS:
            yield group
            group, count = [], 0
    if group:
        yield group


def _log_transitions(applied: list[Event], most: int) -> None:
    if not logger.isEnabledFor(logging.INFO) or not most:
        return
    if len(applied) > most:
        states = Counter(event.state.value for event in applied if event.state)
        logger.info("Many jobs' states updated", extra={"transitions": len(applied), **states})
        return
    for event in applied:
        assert event.state is not None
        fields = {
            "job_id": event.job_id,
            "status": STATUS_OF[event.state].value,
            "state": event.state.value,
            "type": event.type,
            "queue": event.queue,
            "attempt": event.attempt,
        }
        logger.info("Job status updated", extra=fields)


def _ends(event: Event) -> bool:
    return event.state is not None and is_final(event.state)


def _folded_events(entry: bytes, record: bytes, queue: str) -> list[Event]:
    found: list[Event] = []
    try:
        for entry_id, kind, at, worker, value in backlog.parts_of(record):
            head = Head(events.sequence_of(entry_id), kind, at, worker, queue)
            event = event_reader.read(head, entry.decode(), value)
            found += [event] if event else []
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        about = {"entry": entry, "value": record[:1000]}
        logger.error("A folded event can't be read and is dropped: %r", error, extra=about)
    return found


def _events_of(entry_id: bytes, fields: dict[bytes, bytes], queue: str) -> dict[str, Event]:
    found: dict[str, Event] = {}
    known = {name: fields.pop(name.encode(), b"").decode(errors="replace") for name in events.HEAD_FIELDS}
    sequence = events.sequence_of(entry_id.decode())
    head = Head(sequence, known["kind"], known["at"], known["worker"] or None, queue)
    for name, value in fields.items():
        # Each job by itself: one event that can't be read must not hold up the rest, nor those that share its entry.
        try:
            entry = name.decode()
            read = event_reader.read(head, entry, value)
            if read is not None:
                found[entry] = read
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            about = {"entry": entry_id, "field": name, "value": value[:1000]}
            logger.error("An event can't be read and is dropped: %r", error, extra=about)
    return found
