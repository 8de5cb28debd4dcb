"""Compares the rows of jobs that have not ended with what Redis knows of them, and repairs the rows.

Carried out by the projector that works, in small steps. What differs is looked at once more when all that had happened
until then is stored: only what differs still is a difference. A repair is an event, with the place in the order of
events that the look had: what happens later wins. Killed at any point, it has changed nothing or all of a step.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from service.broker import RedisBroker
from service.broker.dead_letter import split_header
from service.broker.rows import JOB_ID
from service.broker.survey import Survey
from service.queues import QUEUES
from service.settings import Settings
from service.state import event as event_reader
from service.state.differences import Difference, Findings, difference
from service.state.event import Event, Head
from service.state.lost_job import Row
from service.state.states import State, is_final
from service.state.store import store

CHUNK = 500
STEP_SECONDS = 0.2
#: Between one look at all and the next.
PAUSE_SECONDS = 30.0
#: A row must be unchanged for a lease and so long: before that, what is about to be told is no difference.
MARGIN_SECONDS = 10.0
#: Where what had happened is not stored by then, the suspects are dropped: the next sweep comes back to them.
PATIENCE_SECONDS = 60.0
MOST_NAMED = 20
#: Of a repair: no event of a stream has it, so that both can have one sequence.
COPY = 2**62

_PAGE = text(
    "SELECT job_id, created_at, last_sequence, queue, state, attempt, changed_at, run_at, priority FROM callboard_jobs "
    "WHERE state = :state AND created_at >= :created AND created_at < :before "
    "AND (created_at, job_id) > (:created, :job_id) ORDER BY created_at, job_id LIMIT :most"
)
_AGAIN = text("SELECT job_id, max(last_sequence) FROM callboard_jobs WHERE job_id = ANY (:ids) GROUP BY job_id")

logger = logging.getLogger(__name__)


class _Suspect(NamedTuple):
    """A job that may differ. `last_sequence` is 0 where it has no row, `record` None where Redis does not know it."""

    job_id: str
    queue: str
    mark: int
    last_sequence: int
    kind: Difference | None
    record: dict[str, str] | None


@dataclass(slots=True)
class _Pending:
    """Suspects that wait until what had happened is stored."""

    suspects: list[_Suspect]
    until: float


class Reconciler:
    """Looks at all rows and queues, again and again. Raises BrokerUnavailable and the driver's errors."""

    def __init__(
        self, broker: RedisBroker, settings: Settings, findings: Findings, older_than_seconds: float | None = None
    ) -> None:
        leases = [settings.lease_seconds or policy.lease_seconds for policy in QUEUES.values()]
        self._age = timedelta(
            seconds=max(leases) + MARGIN_SECONDS if older_than_seconds is None else older_than_seconds
        )
        self._broker = broker
        self._survey = Survey(broker)
        self._findings = findings
        self._missing: Counter[str] = Counter()
        self._pending: _Pending | None = None
        self._sweep: Iterator[list[_Suspect]] | None = None
        self._connection: Connection | None = None
        self._next_at = 0.0

    def step_if_due(self, connection: Connection) -> None:
        """Take a step now and then."""
        if monotonic() >= self._next_at:
            more = self.step(connection)
            self._next_at = monotonic() + (STEP_SECONDS if more else PAUSE_SECONDS)

    def pause(self) -> None:
        """Leave it for a while, and begin anew then."""
        self._pending = self._sweep = None
        self._next_at = monotonic() + PAUSE_SECONDS

    def step(self, connection: Connection) -> bool:
        """Look at up to CHUNK jobs, or judge those of the step before. Returns whether the sweep goes on."""
        self._connection = connection
        if self._pending is not None:
            self._judge_when_stored(connection, self._pending)
            return True
        if self._sweep is None:
            self._missing.clear()
            self._sweep = self._looks()
        try:
            suspects = next(self._sweep, None)
        except BaseException:
            self._sweep = None
            raise
        if suspects is None:
            self._sweep = None
            self._end_sweep()
            return False
        if suspects:
            self._pending = _Pending(suspects, monotonic() + PATIENCE_SECONDS)
        return True

    def _end_sweep(self) -> None:
        self._findings.note_sweep(self._missing, time.time())
        if self._missing:
            logger.warning("Jobs of the database are not in Redis: see `callboard rebuild`", extra=dict(self._missing))

    def _looks(self) -> Iterator[list[_Suspect]]:
        for state in State:
            if not is_final(state):
                for page in self._pages(state):
                    yield list(self._compared(page))
        for queue, job_ids in self._survey.entries():
            yield list(self._unknown(queue, [job_id for job_id in job_ids if JOB_ID.fullmatch(job_id)]))

    def _pages(self, state: State) -> Iterator[Sequence[Row]]:
        before = datetime.now(UTC) - self._age
        after: dict[str, Any] = {"created": datetime.fromtimestamp(0, UTC), "job_id": UUID(int=0)}
        while True:
            parameters = {**after, "state": state.value, "before": before, "most": CHUNK}
            page = self._read(_PAGE, parameters)
            yield [row for row in page if row["changed_at"] < before and row["queue"] in QUEUES]
            if len(page) < CHUNK:
                return
            after = {"created": page[-1]["created_at"], "job_id": page[-1]["job_id"]}

    def _compared(self, page: Sequence[Row]) -> Iterator[_Suspect]:
        by_queue: dict[str, list[str]] = {}
        for row in page:
            by_queue.setdefault(row["queue"], []).append(str(row["job_id"]))
        marks = {queue: self._survey.mark(queue) for queue in by_queue}
        records = {record["job_id"]: record for record in self._broker.find_records(by_queue)}
        for queue, job_ids in by_queue.items():
            lost = [job_id for job_id in job_ids if job_id not in records]
            records |= {
                job_id: {**death, "job_id": job_id} for job_id, death in self._survey.deaths(queue, lost).items()
            }
        for row in page:
            record = records.get(str(row["job_id"]))
            kind = difference(row, record) if record else None
            if record is None or kind:
                mark = marks[row["queue"]]
                yield _Suspect(str(row["job_id"]), row["queue"], mark, row["last_sequence"], kind, record)

    def _unknown(self, queue: str, job_ids: Sequence[str]) -> Iterator[_Suspect]:
        mark = self._survey.mark(queue)
        known = self._sequences(job_ids)
        for record in self._broker.find_records({queue: [job_id for job_id in job_ids if job_id not in known]}):
            yield _Suspect(record["job_id"], queue, mark, 0, Difference.UNKNOWN, record)

    def _judge_when_stored(self, connection: Connection, pending: _Pending) -> None:
        marks = {suspect.queue: suspect.mark for suspect in pending.suspects}
        if all(self._survey.is_stored(queue, mark) for queue, mark in marks.items()):
            self._pending = None
            self._judge(connection, pending.suspects)
        elif monotonic() > pending.until:
            self._pending = None

    def _judge(self, connection: Connection, suspects: Sequence[_Suspect]) -> None:
        now = self._sequences([suspect.job_id for suspect in suspects])
        guilty = [each for each in suspects if now.get(each.job_id, 0) == each.last_sequence]
        repairs: list[tuple[_Suspect, list[Event]]] = []
        for suspect in guilty:
            if suspect.record is None:
                self._missing[suspect.queue] += 1
            elif events := self._events(suspect, suspect.record):
                repairs.append((suspect, events))
        if not repairs:
            return
        store(connection, [event for _, events in repairs for event in events])
        for suspect, events in repairs:
            self._findings.note(suspect.queue, suspect.kind or Difference.STATE)
            if is_final(events[-1].state or State.PENDING):
                self._broker.wire.forget(suspect.queue, [(suspect.job_id, events[-1].at)])
        faults = [suspect for suspect, _ in repairs if suspect.kind is not Difference.DUE]
        if faults:
            some = [suspect.job_id for suspect in faults[:MOST_NAMED]]
            kinds = Counter(suspect.kind.value for suspect in faults if suspect.kind)
            logger.warning("Rows of jobs were repaired", extra={**kinds, "job_ids": some})

    def _events(self, suspect: _Suspect, record: dict[str, str]) -> list[Event]:
        """What would have been told of the job, where it was: nothing where that can't be read."""
        try:
            sent = [self._sent(suspect, record)] if suspect.kind is Difference.UNKNOWN else []
            is_over = is_final(State(record["state"]))
            at = record["at"] if is_over else str(self._survey.now_ms())
            head = Head(suspect.mark, "settled", at, None, suspect.queue)
            event = event_reader.read(head, f"{suspect.job_id}~{COPY}", json.dumps(record).encode())
            if event is None:
                return []
            event.kind, event.worker = "repaired", record.get("worker")
            return [*(one for one in sent if one), event]
        except (KeyError, ValueError, TypeError) as error:
            logger.error("A row can't be repaired: %r", error, extra={"job_id": suspect.job_id, "queue": suspect.queue})
            return []

    def _sent(self, suspect: _Suspect, record: dict[str, str]) -> Event | None:
        header, message = split_header(self._survey.message(suspect.queue, suspect.job_id) or b"")
        if not header:
            return None
        words, _, key = header.rstrip(b"\n").partition(b"\t")
        created = int(record["created_at"])
        value = b"- %b\t%b\t%b\n%b" % (words.split(b" ", 1)[1], key, record["priority"].encode(), message)
        head = Head(created << 20, "sent", str(created), None, suspect.queue)
        return event_reader.read(head, f"{suspect.job_id}~{COPY}", value)

    def _sequences(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The newest event that is stored of each job that has a row."""
        if not job_ids:
            return {}
        return {str(row["job_id"]): row["max"] for row in self._read(_AGAIN, {"ids": [UUID(each) for each in job_ids]})}

    def _read(self, query: Any, parameters: dict[str, Any]) -> Sequence[Row]:
        assert self._connection is not None
        rows = self._connection.execute(query, parameters).mappings().all()
        self._connection.commit()
        return rows
