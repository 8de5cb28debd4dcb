"""Fills a Redis that has lost jobs from the database: all that this has seen and that Redis does not know.

It may run beside workers and producers, twice, and two at once: what is there stays, and no job comes back twice. A row
is looked at again after Redis was asked: while Redis had the job, or its end, the row has changed by then.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from dramatiq.actor import Actor
from sqlalchemy import Engine, text

from service.broker import RedisBroker
from service.broker.once import is_wide
from service.broker.restoring import MOST_BYTES, MOST_ROWS, Lost, Restored, Restoring
from service.queues import QUEUES
from service.state.database import reaching
from service.state.lost_job import Row, lost_job, lost_letter, taken_key, taken_until
from service.state.states import State, is_final

NO_MESSAGE = "the database has no message of it: it was too long, or an earlier release has sent it"
NO_QUEUE = "its queue is not in the table of queues"
#: Those that were waiting longest come back first.
WAITING = tuple(state for state in State if not is_final(state))

_SOME = (
    "SELECT job_id, created_at, last_sequence, queue, state, completed_at, octet_length(message) AS bytes "
    "FROM callboard_jobs j WHERE state = :state AND created_at >= :created "
    "AND (created_at, job_id) > (:created, :job_id)"
)
_OLDEST = "ORDER BY created_at, job_id LIMIT :most"
_DELETED = (
    "EXISTS (SELECT FROM callboard_events e WHERE e.created_at = j.created_at AND e.job_id = j.job_id "
    "AND e.sequence > j.sequence AND e.kind = 'deleted')"
)
_PAGE = text(f"{_SOME} {_OLDEST}")
_LETTERS = text(f"{_SOME} AND NOT {_DELETED} {_OLDEST}")
_STATE = "job_id, created_at, last_sequence, type, queue, state, attempt, started_at, completed_at, tenant, key, error"
_THESE = "FROM callboard_jobs WHERE created_at = ANY (:created) AND job_id = ANY (:ids)"
_ROWS = text(f"SELECT {_STATE}, changed_at, run_at, reason, priority, message {_THESE}")
_ENDS = text(f"SELECT {_STATE}, reason, skipped, result {_THESE}")
_KEYS = text(
    "SELECT key, type, created_at, job_id, queue, state, skipped, completed_at FROM callboard_jobs "
    "WHERE key IS NOT NULL AND (key, created_at, job_id) > (:key, :created, :job_id) "
    "ORDER BY key, created_at, job_id LIMIT :most"
)
_FIRST = {"created": datetime.fromtimestamp(0, UTC), "job_id": UUID(int=0)}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotRestored:
    """A job that could not be brought back, and why."""

    job_id: str
    queue: str
    state: State
    why: str


@dataclass(slots=True)
class Report:
    """What was brought back, or would be; each number by queue and the state that the database had.

    keys: idempotency keys that are taken again, by queue. letters_left: dead letters that stay in the database only.
    """

    restored: Counter[tuple[str, State]] = field(default_factory=Counter[tuple[str, State]])
    keys: Counter[str] = field(default_factory=Counter[str])
    letters_left: Counter[str] = field(default_factory=Counter[str])
    lost: list[NotRestored] = field(default_factory=list[NotRestored])

    @property
    def total(self) -> int:
        """Jobs that were brought back."""
        return self.restored.total()


class Rebuild:
    """One rebuild of all queues. Raises BrokerUnavailable and HistoryUnavailable: run it again then."""

    def __init__(
        self,
        broker: RedisBroker,
        engine: Engine,
        *,
        letters_days: float,
        all_letters: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._restoring = Restoring(broker)
        self._letters_since = datetime.now(UTC) - timedelta(days=letters_days)
        self._all_letters = all_letters
        self._dry_run = dry_run
        self._ranks: Counter[str] = Counter()
        self.report = Report()

    def run(self) -> Report:
        """Bring back keys, jobs and dead letters, in this order: a job must not start before its key is taken."""
        left_out = self._begin_letters()
        self._bring_keys()
        for state in WAITING:
            for page in self._pages(_PAGE, {**_FIRST, "state": state.value}):
                self._bring(page)
        self._bring_letters(left_out)
        return self.report

    def _begin_letters(self) -> set[str]:
        """Return the queues whose letters stay away. Decided first: what comes back may die at once."""
        left_out = set[str]()
        if not self._all_letters:
            left_out = {queue for queue in QUEUES if self._restoring.has_letters_of_its_own(queue)}
        if not self._dry_run:
            for queue in set(QUEUES) - left_out:
                self._restoring.begin_letters(queue)
        return left_out

    def _bring_letters(self, left_out: set[str]) -> None:
        for page in self._pages(_LETTERS, {**_FIRST, "state": State.DEAD.value}):
            recent = [row for row in page if row["completed_at"] and row["completed_at"] >= self._letters_since]
            out = [row for row in recent if row["queue"] in left_out]
            for queue, rows in _by_queue(out):
                missing = self._restoring.missing(queue, [str(row["job_id"]) for row in rows])
                self.report.letters_left[queue] += len(missing)
            self._bring([row for row in recent if row["queue"] not in left_out])

    def _bring(self, page: Sequence[Row]) -> None:
        for queue, rows in _by_queue(page):
            if queue not in QUEUES:
                for row in rows:
                    self._give_up(row, NO_QUEUE)
                continue
            missing = set(self._restoring.missing(queue, [str(row["job_id"]) for row in rows]))
            lost = [row for row in rows if str(row["job_id"]) in missing]
            for group in _groups(lost):
                self._bring_group(queue, group)

    def _bring_group(self, queue: str, group: Sequence[Row]) -> None:
        known = {(row["job_id"], row["last_sequence"]): row["state"] for row in group}
        # What has ended since Redis was asked is stored by now, and what is as it was has been lost.
        rows = [
            row for row in self._rows(_ROWS, group) if known.get((row["job_id"], row["last_sequence"])) == row["state"]
        ]
        for row in rows:
            if row["message"] is None:
                self._give_up(row, NO_MESSAGE)
        rows = [row for row in rows if row["message"] is not None]
        if not rows:
            return
        now_ms = self._restoring.now_ms()
        lost = [self._lost(queue, row, now_ms) for row in rows]
        replies = [Restored.DONE] * len(lost) if self._dry_run else self._restoring.restore(queue, lost)
        for row, reply in zip(rows, replies, strict=True):
            if reply is Restored.DONE:
                self.report.restored[queue, State(row["state"])] += 1

    def _lost(self, queue: str, row: Row, now_ms: int) -> Lost:
        self._ranks[queue] += 1
        actor = self._actor(row["type"])
        if row["state"] == State.DEAD:
            return lost_letter(row, actor, self._ranks[queue])
        return lost_job(row, actor, self._ranks[queue], now_ms)

    def _bring_keys(self) -> None:
        now_ms = self._restoring.now_ms()
        for page in self._pages(_KEYS, {**_FIRST, "key": ""}):
            own = [row for row in page if row["queue"] in QUEUES]
            taken = [row for row in own if taken_until(row, self._actor(row["type"])) > now_ms]
            for queue, rows in _by_queue(self._rows(_ENDS, taken)):
                # One that was replayed meanwhile keeps nothing taken any more.
                keys = [taken_key(row, self._actor(row["type"])) for row in rows]
                free = [key for key in keys if key.until_ms > now_ms]
                if free:
                    kept = len(free) if self._dry_run else self._restoring.remember(queue, free)
                    self.report.keys[queue] += kept
                wide = {row["key"] for row in rows if is_wide(self._actor(row["type"]))}
                if wide and not self._dry_run:
                    self._restoring.point(queue, [key for key in free if key.key in wide])

    def _give_up(self, row: Row, why: str) -> None:
        one = NotRestored(str(row["job_id"]), row["queue"], State(row["state"]), why)
        self.report.lost.append(one)
        fields = {"job_id": one.job_id, "queue": one.queue, "state": one.state.value, "why": why}
        logger.warning("A job can't be brought back", extra=fields)

    def _actor(self, name: str) -> Actor[..., Any] | None:
        return self._broker.get_actor(name) if self._broker.is_named(name) else None

    def _rows(self, query: Any, some: Sequence[Row]) -> Sequence[Row]:
        if not some:
            return []
        parameters = {"created": list({row["created_at"] for row in some}), "ids": [row["job_id"] for row in some]}
        with reaching(self._engine), self._engine.connect() as connection:
            found = connection.execute(query, parameters).mappings().all()
        # Of those of one millisecond, what is known of them since tells mostly who came first.
        return sorted(found, key=lambda row: (row["created_at"], row["last_sequence"]))

    def _pages(self, query: Any, start: Mapping[str, Any]) -> Iterator[Sequence[Row]]:
        after = dict(start)
        while True:
            with reaching(self._engine), self._engine.connect() as connection:
                page = connection.execute(query, {**after, "most": MOST_ROWS}).mappings().all()
            if page:
                yield page
                last = page[-1]
                after |= {"created": last["created_at"], "job_id": last["job_id"]}
                if "key" in after:
                    after["key"] = last["key"]
            if len(page) < MOST_ROWS:
                return


def _by_queue(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for queue in sorted({row["queue"] for row in rows}):
        yield queue, [row for row in rows if row["queue"] == queue]


def _groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Divide rows into groups whose messages are in memory together."""
    group: list[Row] = []
    size = 0
    for row in rows:
        if group and size + (row["bytes"] or 0) > MOST_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += row["bytes"] or 0
    if group:
        yield group
