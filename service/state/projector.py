"""The projector: reads the event streams, stores the newest state of each job, logs every transition.

An entry leaves its stream only after its batch is committed, and a row takes only an event with a higher sequence. So
a projector that is killed at any point loses nothing and, started again, repeats nothing that can be seen. One works at
a time, by a lock in the database that goes with its connection; others stand by.
"""

import logging
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.dialects.postgresql import insert

from service.broker import RedisBroker, events
from service.broker.events import NEWEST
from service.broker.keys import Keys
from service.errors import CallboardError
from service.observe.probe import Probe
from service.queues import QUEUES
from service.settings import Settings
from service.state.database import engine_for, reaching
from service.state.retention import Retention
from service.state.snapshot import Snapshot
from service.state.states import STATUS_OF, TRANSITIONS, State, is_final
from service.state.tables import jobs

BATCH = 500
#: Events that are stored together, up to the last entry's: PostgreSQL takes 65,535 parameters, and a row has 14.
EVENTS = 2000
IDLE_BLOCK_MS = 1000
STANDBY_SECONDS = 1.0
MAX_DELAY_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream, with the events that can be read in it, each by its job's entry in the queue."""

    queue: str
    entry_id: bytes
    snapshots: dict[str, Snapshot]


class Projector:
    """Moves events from Redis to the table of jobs."""

    def __init__(self, broker: RedisBroker, engine: Engine, retention: Retention | None = None) -> None:
        self._broker = broker
        self._engine = engine
        self._retention = retention
        self._streams = {Keys(broker.namespace, queue).events: queue for queue in QUEUES}
        self._lock = zlib.crc32(f"{broker.namespace}:projector".encode())
        self._count = BATCH
        self.is_ready = False

    def run(self, stop: Event) -> None:
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
                stop.wait(delay_seconds)
                delay_seconds = min(delay_seconds * 2, MAX_DELAY_SECONDS)

    def project_batch(self, connection: Connection, block_ms: int | None = None) -> int:
        """Store up to a batch of events of each stream, and return their number."""
        entries = list(self._read(block_ms))
        if not entries:
            return 0
        for group in _groups(entries):
            snapshots = [snapshot for entry in group for snapshot in entry.snapshots.values()]
            fresh = _store(connection, snapshots)
            connection.commit()
            for snapshot in fresh:
                _log_transition(snapshot)
            self._forget(group)
        # Entries of a single event are read by the hundred, and large ones a few at a time.
        many = sum(len(entry.snapshots) for entry in entries) > EVENTS
        self._count = max(self._count // 4, 1) if many else min(self._count * 2, BATCH)
        return len(entries)

    def _is_the_one(self, connection: Connection) -> bool:
        won = connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": self._lock}).scalar_one()
        connection.commit()
        return bool(won)

    def _work(self, connection: Connection, stop: Event) -> None:
        self.is_ready = True
        logger.info("The projector works on %d streams", len(self._streams))
        try:
            while not stop.is_set():
                self.project_batch(connection, IDLE_BLOCK_MS)
                if self._retention:
                    self._retention.step_if_due()
            while self.project_batch(connection):  # what came in while the last workers drained
                pass
        finally:
            if not connection.invalidated:
                connection.rollback()
                connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": self._lock})
                connection.commit()

    def _read(self, block_ms: int | None) -> Iterable[Entry]:
        # Always from the start: what has been stored is no longer there.
        found: list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]] = self._broker.client.xread(
            dict.fromkeys(self._streams, "0"), count=self._count, block=block_ms
        )
        for stream, entries in found:
            for entry_id, fields in entries:
                queue = self._streams[stream.decode()]
                yield Entry(queue, entry_id, _snapshots_of(entry_id, fields, queue))

    def _forget(self, entries: list[Entry]) -> None:
        # The stream last: what is left of it is stored, and forgotten, once more.
        for queue in {entry.queue for entry in entries}:
            own = [entry for entry in entries if entry.queue == queue]
            ended = [
                (name, round(snapshot.changed_at.timestamp() * 1000))
                for entry in own
                for name, snapshot in entry.snapshots.items()
                if is_final(snapshot.state)
            ]
            self._broker.wire.forget(queue, ended)
            stream = Keys(self._broker.namespace, queue).events
            self._broker.client.xdel(stream, *[entry.entry_id for entry in own])


def run_projector(settings: Settings, stop: Event) -> None:
    """Run a projector with the configured broker and database, and its probe. Raises SettingsError."""
    from service.broker import broker

    settings.require_redis_url()
    engine = engine_for(settings.require_database_url())
    projector = Projector(broker, engine, Retention(broker, settings))
    probe = Probe(settings.worker_host, settings.worker_port, lambda: projector.is_ready)
    probe.start()
    projector.run(stop)
    probe.stop()


def _groups(entries: Iterable[Entry]) -> Iterable[list[Entry]]:
    """Divide entries into groups of about EVENTS events: one entry has up to 1,000."""
    group: list[Entry] = []
    count = 0
    for entry in entries:
        group.append(entry)
        count += len(entry.snapshots)
        if count >= EVENTS:
            yield group
            group, count = [], 0
    if group:
        yield group


def _store(connection: Connection, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Upsert the newest snapshot of each job. Returns those that are newer than what was stored, in order."""
    ids = {snapshot.job_id for snapshot in snapshots}
    known = select(jobs.c.job_id, jobs.c.sequence, jobs.c.state).where(jobs.c.job_id.in_(ids))
    rows = {row.job_id: row for row in connection.execute(known)}
    states = {job_id: State(row.state) for job_id, row in rows.items()}
    # A success or a cancellation is never left, so nothing is newer than it. A death is, by a replay.
    stored = {job_id: row.sequence if TRANSITIONS[states[job_id]] else NEWEST for job_id, row in rows.items()}
    fresh = [snapshot for snapshot in snapshots if snapshot.sequence > stored.get(snapshot.job_id, 0)]
    newest: dict[UUID, Snapshot] = {}
    renewed: set[UUID] = set()
    for snapshot in sorted(fresh, key=lambda snapshot: snapshot.sequence):
        job_id = snapshot.job_id
        state = states.get(job_id)
        if state is None or TRANSITIONS[state]:
            if state is State.DEAD and snapshot.state is not State.DEAD:
                renewed.add(job_id)
            newest[job_id] = snapshot.after(newest.get(job_id))
            states[job_id] = snapshot.state
    _upsert(connection, [snapshot for job_id, snapshot in newest.items() if job_id not in renewed], anew=False)
    _upsert(connection, [newest[job_id] for job_id in renewed], anew=True)
    return fresh


def _upsert(connection: Connection, snapshots: list[Snapshot], *, anew: bool) -> None:
    """Store snapshots. Of a job that starts `anew`, nothing of the life before is kept."""
    if not snapshots:
        return
    rows = [asdict(snapshot) for snapshot in snapshots]
    upsert = insert(jobs).values([{name: row[name] for name in jobs.columns.keys()} for row in rows])  # noqa: SIM118 - a collection, not a mapping
    changes: dict[str, Any] = {name: upsert.excluded[name] for name in jobs.columns.keys() if name != "job_id"}  # noqa: SIM118 - a collection, not a mapping
    if not anew:
        changes["started_at"] = func.coalesce(jobs.c.started_at, upsert.excluded.started_at)
        changes["attempt"] = func.greatest(jobs.c.attempt, upsert.excluded.attempt)
    connection.execute(
        upsert.on_conflict_do_update(
            index_elements=[jobs.c.job_id], set_=changes, where=upsert.excluded.sequence > jobs.c.sequence
        )
    )


def _log_transition(snapshot: Snapshot) -> None:
    fields = {
        "job_id": str(snapshot.job_id),
        "status": STATUS_OF[snapshot.state].value,
        "state": snapshot.state.value,
        "type": snapshot.type,
        "queue": snapshot.queue,
        "attempt": snapshot.attempt,
    }
    logger.info("Job status updated", extra=fields)


def _snapshots_of(entry_id: bytes, fields: dict[bytes, bytes], queue: str) -> dict[str, Snapshot]:
    snapshots: dict[str, Snapshot] = {}
    head = {
        name: fields[name.encode()].decode(errors="replace") for name in events.HEAD_FIELDS if name.encode() in fields
    }
    for name, value in fields.items():
        # Each job by itself: one event that can't be read must not hold up the rest, nor those that share its entry.
        try:
            for event in events.read(entry_id.decode(), {**head, name.decode(): value.decode(errors="replace")}, queue):
                snapshots[name.decode()] = Snapshot.from_event(event)
        except (KeyError, ValueError) as error:
            about = {"entry": entry_id, "field": name, "value": value}
            logger.error("An event can't be read and is dropped: %r", error, extra=about)
    return snapshots
