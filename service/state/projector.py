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

import redis
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.dialects.postgresql import insert

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import CallboardError
from service.observe.probe import Probe
from service.queues import QUEUES
from service.settings import Settings
from service.state.database import engine_for, reaching
from service.state.snapshot import Snapshot
from service.state.states import STATUS_OF, is_final
from service.state.tables import jobs

BATCH = 500
IDLE_BLOCK_MS = 1000
STANDBY_SECONDS = 1.0
MAX_DELAY_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream. `snapshot` is None where the entry can't be read."""

    stream: str
    entry_id: bytes
    snapshot: Snapshot | None


class Projector:
    """Moves events from Redis to the table of jobs."""

    def __init__(self, broker: RedisBroker, engine: Engine) -> None:
        self._broker = broker
        self._engine = engine
        self._streams = [Keys(broker.namespace, queue).events for queue in QUEUES]
        self._lock = zlib.crc32(f"{broker.namespace}:projector".encode())
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
        snapshots = [entry.snapshot for entry in entries if entry.snapshot]
        fresh = _store(connection, snapshots)
        connection.commit()
        for snapshot in fresh:
            _log_transition(snapshot)
        self._forget(entries)
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
            dict.fromkeys(self._streams, "0"), count=BATCH, block=block_ms
        )
        for stream, entries in found:
            for entry_id, fields in entries:
                yield Entry(stream.decode(), entry_id, _snapshot_of(entry_id, fields))

    def _forget(self, entries: list[Entry]) -> None:
        with self._broker.client.pipeline(transaction=False) as pipeline:
            for stream in {entry.stream for entry in entries}:
                pipeline.xdel(stream, *[entry.entry_id for entry in entries if entry.stream == stream])
            for entry in entries:
                if entry.snapshot and is_final(entry.snapshot.state):
                    keys = Keys(self._broker.namespace, entry.snapshot.queue)
                    pipeline.unlink(keys.job(str(entry.snapshot.job_id)))
            pipeline.execute()


def run_projector(settings: Settings, stop: Event) -> None:
    """Run a projector with the configured broker and database, and its probe. Raises SettingsError."""
    from service.broker import broker

    settings.require_redis_url()
    projector = Projector(broker, engine_for(settings.require_database_url()))
    probe = Probe(settings.worker_host, settings.worker_port, lambda: projector.is_ready)
    probe.start()
    projector.run(stop)
    probe.stop()


def _store(connection: Connection, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Upsert the newest snapshot of each job. Returns those that are newer than what was stored, in order."""
    ids = {snapshot.job_id for snapshot in snapshots}
    known = select(jobs.c.job_id, jobs.c.sequence).where(jobs.c.job_id.in_(ids))
    stored = {row.job_id: row.sequence for row in connection.execute(known)}
    fresh = [snapshot for snapshot in snapshots if snapshot.sequence > stored.get(snapshot.job_id, 0)]
    newest: dict[Any, Snapshot] = {}
    for snapshot in fresh:
        if snapshot.job_id not in newest or snapshot.sequence > newest[snapshot.job_id].sequence:
            newest[snapshot.job_id] = snapshot
    if newest:
        upsert = insert(jobs).values([asdict(snapshot) for snapshot in newest.values()])
        changes = {column.name: upsert.excluded[column.name] for column in jobs.c if not column.primary_key}
        connection.execute(
            upsert.on_conflict_do_update(
                index_elements=[jobs.c.job_id], set_=changes, where=upsert.excluded.sequence > jobs.c.sequence
            )
        )
    return fresh


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


def _snapshot_of(entry_id: bytes, fields: dict[bytes, bytes]) -> Snapshot | None:
    try:
        return Snapshot.from_event({key.decode(): value.decode() for key, value in fields.items()})
    except (KeyError, ValueError) as error:
        # One entry that somebody else wrote must not hold up the rest.
        logger.error("An event can't be read and is dropped: %r", error, extra={"entry": entry_id, "fields": fields})
        return None
