"""What an operator does with dead letters: list, look, replay, delete. Each act is one atomic script.

    letters = DeadLetters(broker)
    page = letters.page(Filter(queue="email", reason=Reason.CRASHED))
    letters.replay(page.letters[0], by="ada", why="the mail server is back")

A request that is repeated under its own name, `request`, replays no job a second time. Every method raises
BrokerUnavailable.
"""

import heapq
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from itertools import islice
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

import redis
from dramatiq.errors import ActorNotFound

from service.broker import dead_letter
from service.broker.dead_letter import DeadLetter
from service.broker.keys import Keys
from service.broker.outcome import BRIEF_CHARACTERS, Reason, storable
from service.broker.redis_broker import RedisBroker
from service.broker.replay import edit, key_in_place, message_of_next_life, note, unique_key_of
from service.broker.rows import unique_of
from service.errors import InvalidRequest, JobExists, PayloadError, UnknownJobType
from service.queues import QUEUES

CHUNK = 100
#: Letters that one page looks at: where the filter fits few of many, it comes back with less and a cursor.
MOST_LOOKED_AT = 10_000
#: In the place of an entry: all that died in one millisecond stand before it.
BEHIND_ALL = b"\xff"
#: Written by scripts that do not look into messages: whose job it was is in the message only.
UNTOLD = frozenset({Reason.CRASHED, Reason.INVALID})

logger = logging.getLogger(__name__)


class Replay(IntEnum):
    """How a replay ended."""

    DONE = 1
    DONE_BEFORE = 0  # by this request
    GONE = -1  # replayed by another request, deleted, or dead again of something else
    ON_ITS_QUEUE = -2  # it was sent again under its id, and has not ended
    FOREIGN = -3  # Callboard has not written it, and does not know its place


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant: all that fit every field that is given. `since` <= time of death <= `until`.

    error_type: the whole name, or its last part: `SMTPDataError` for `smtplib.SMTPDataError`.
    tenant: for whom the job works.
    """

    queue: str | None = None
    function: str | None = None
    reason: Reason | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tenant: str | None = None

    def fits_record(self, letter: DeadLetter) -> bool:
        """Say whether a letter of a fitting queue and time may be meant, read without its message."""
        return (
            self.function in (None, letter.function)
            and self.reason in (None, letter.reason)
            and self.error_type in (None, letter.error["type"], letter.error["type"].rpartition(".")[2])
            and (self.fits_message(letter) or (letter.tenant is None and letter.reason in UNTOLD))
        )

    def fits_message(self, letter: DeadLetter) -> bool:
        """Say whether a letter whose record fits is meant."""
        return self.tenant in (None, letter.tenant)


@dataclass(frozen=True, slots=True)
class Page:
    """Dead letters, the newest first. `cursor` leads to the next page; None where there is none."""

    letters: list[DeadLetter]
    cursor: str | None


@dataclass(slots=True)
class BulkReport:
    """What a bulk replay did, or would do.

    counts: by queue, function and reason. skipped: what is on its queue again, or was not written by Callboard.
    """

    replayed: int = 0
    skipped: int = 0
    stopped: bool = False
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])


class Found(NamedTuple):
    """What lies among the dead letters of a queue; `letter` is None where nobody can read it."""

    entry: bytes
    died_ms: int
    letter: DeadLetter | None


class _Place(NamedTuple):
    """Where a letter stands in the order of all queues."""

    died_ms: int
    queue: str
    entry: bytes


class DeadLetters:
    """The dead letters of all queues of a broker."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def page(self, where: Filter = Filter(), *, cursor: str | None = None, limit: int = 50) -> Page:
        """Return up to `limit` dead letters, the newest first. Raises InvalidRequest for a cursor of nobody's."""
        after = None if cursor is None else _read_cursor(cursor)
        found: list[DeadLetter] = []
        looked_at, last = 0, None
        with self._reaching():
            for place, letter in self._walk(where, after):
                if len(found) == limit or looked_at == MOST_LOOKED_AT:
                    return Page(found, _cursor(last) if last else None)
                looked_at += 1
                if letter:
                    found.append(letter)
                    last = place
                elif not found:
                    # The cursor names no job that the filter leaves out: it may be another tenant's.
                    last = place._replace(entry=BEHIND_ALL)
        return Page(found, None)

    def get(self, job_id: str) -> DeadLetter | None:
        """Return a dead letter by its job's id, or None."""
        entry = job_id.encode(errors="replace")
        with self._reaching():
            for queue in QUEUES:
                if letter := self._read(queue, [entry])[0]:
                    return letter
        return None

    def delete(self, letter: DeadLetter, *, by: str, why: str = "") -> bool:
        """Remove a dead letter for good. Returns whether it was still there."""
        with self._reaching():
            found = [(letter.entry, letter.died_ms)]
            removed = self._broker.wire.discard(letter.original_queue, found, _by_whom(by, why)) == 1
        if removed:
            logger.warning("A dead letter was deleted", extra=_about(letter, by, why))
        return removed

    def replay(
        self,
        letter: DeadLetter,
        *,
        by: str,
        why: str = "",
        payload: object = None,
        delay_ms: int | None = None,
        request: str | None = None,
    ) -> Replay:
        """Put a job back on its first queue under its id: to its old place, with no attempt behind it.

        payload: a JSON object in place of the arguments that it died with; a key that its actor makes follows from it.
        Raises PayloadError, which names the field, UnknownJobType where the actor that would check it is not here, and
        JobExists where another job has its unique key: else it takes that again.
        """
        edited = None if payload is None else edit(letter, self._actor_of(letter), payload)
        data = message_of_next_life(letter, edited)
        if edited and len(data) > self._broker.max_message_bytes:
            problem = f"makes a message of {len(data)} bytes; the limit is {self._broker.max_message_bytes}"
            raise PayloadError(letter.function, [("", problem)])
        log, request = note(letter, by, why, edited.kwargs if edited else None), request or uuid4().hex
        key, unique_key = key_in_place(edited), unique_key_of(data)
        unique = unique_of(unique_key, self._broker.find_actor(letter.function)) if unique_key else None
        how = {"request": request, "delay_ms": delay_ms, "log": log, "data": data, "key": key, "unique": unique}
        with self._reaching():
            done = Replay(self._replay(letter, **how))
        if done is Replay.DONE:
            logger.info("A dead letter was replayed", extra=_about(letter, by, why))
        return done

    def _replay(self, letter: DeadLetter, **how: Any) -> int:
        place = (letter.original_queue, letter.entry, letter.died_ms)
        try:
            return self._broker.wire.replay(*place, **how)
        except redis.ConnectionError:
            # Whether it was done: the script knows its own request.
            done = self._broker.wire.replay(*place, **how)
            return Replay.DONE if done == Replay.DONE_BEFORE else done

    def replay_many(
        self,
        where: Filter = Filter(),
        *,
        by: str,
        why: str = "",
        limit: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        stop: Event | None = None,
        request: str | None = None,
    ) -> BulkReport:
        """Replay what the filter means, the oldest first, one after another, and report.

        per_second: the pace. stop: set it to end early. dry_run: only count. A request that is repeated counts in what
        it has replayed before, also for its limit. What dies during the replay is not meant.
        """
        report = BulkReport()
        request, stop = request or uuid4().hex, stop or Event()
        with self._reaching():
            report.replayed = 0 if dry_run else self._done_before(request)
            until_ms = self._now_ms()
            for _, letter in self._walk(where, until_ms=until_ms, oldest_first=True):
                if limit is not None and report.replayed >= limit:
                    break
                if letter is None:
                    continue
                if stop.is_set():
                    report.stopped = True
                    break
                done = Replay.DONE if dry_run else self._replay_or_skip(letter, by, why, request)
                if done is Replay.DONE:
                    report.replayed += 1
                    report.counts[letter.original_queue, letter.function, letter.reason.value] += 1
                    if per_second and not dry_run:
                        stop.wait(1 / per_second)
                elif done is not Replay.DONE_BEFORE:
                    report.skipped += 1
        return report

    def _replay_or_skip(self, letter: DeadLetter, by: str, why: str, request: str) -> Replay | None:
        try:
            return self.replay(letter, by=by, why=why, request=request)
        except JobExists as error:
            logger.info("A dead letter stays: %s", error, extra=_about(letter, by, why))
            return None

    def oldest(self, queue: str, count: int) -> tuple[list[Found], int, int]:
        """Return up to `count` letters of a queue that died first, the number of all, and the server's time in ms."""
        key = Keys(self._broker.namespace, queue).dead
        with self._reaching():
            places = self._broker.client.zrange(key, 0, count - 1, withscores=True)
            if not places:
                return [], 0, 0
            letters = self._read(queue, [entry for entry, _ in places])
            found = [Found(entry, int(died), one) for (entry, died), one in zip(places, letters, strict=True)]
            return found, self._broker.client.zcard(key), self._now_ms()

    def discard(self, queue: str, found: Sequence[Found], *, by: str, why: str) -> int:
        """Remove letters for good, and return how many of them were still there."""
        with self._reaching():
            letters = [(one.entry, one.died_ms) for one in found]
            return self._broker.wire.discard(queue, letters, _by_whom(by, why))

    def _done_before(self, request: str) -> int:
        return sum(self._broker.client.scard(Keys(self._broker.namespace, queue).replayed(request)) for queue in QUEUES)

    def _now_ms(self) -> int:
        seconds, micro = self._broker.client.time()
        return seconds * 1000 + micro // 1000

    def _actor_of(self, letter: DeadLetter) -> Any:
        try:
            return self._broker.get_actor(letter.function)
        except ActorNotFound:
            raise UnknownJobType(letter.function, self._broker.known_types) from None

    def _walk(
        self, where: Filter, after: _Place | None = None, *, until_ms: int | None = None, oldest_first: bool = False
    ) -> Iterator[tuple[_Place, DeadLetter | None]]:
        """Go through the filter's queues and times in the order of deaths, with None for what it does not mean."""
        least = 0 if where.since is None else int(where.since.timestamp() * 1000)
        most = 2**53 if where.until is None else int(where.until.timestamp() * 1000)
        most = min(most, until_ms or most, after.died_ms if after else most)
        queues = QUEUES if where.queue is None else [where.queue]
        ways = [self._places(queue, least, most, oldest_first) for queue in queues]
        places = heapq.merge(*ways, reverse=not oldest_first)
        rest = (place for place in places if after is None or place < after)
        while chunk := list(islice(rest, CHUNK)):
            by_queue: dict[str, list[_Place]] = defaultdict(list)
            for place in chunk:
                by_queue[place.queue].append(place)
            meant = {place for queue, own in by_queue.items() for place in self._meant(where, queue, own)}
            for place in chunk:
                # The messages one by one, since each may be long.
                letter = self._read(place.queue, [place.entry])[0] if place in meant else None
                yield place, letter if letter and where.fits_message(letter) else None

    def _meant(self, where: Filter, queue: str, places: list[_Place]) -> Iterator[_Place]:
        key = Keys(self._broker.namespace, queue).dead_letters
        records: list[bytes | None] = self._broker.client.hmget(key, [place.entry for place in places])
        for place, record in zip(places, records, strict=True):
            letter = _letter(queue, place.entry, record, b"")
            if letter and where.fits_record(letter):
                yield place

    def _places(self, queue: str, least: int, most: int, oldest_first: bool) -> Iterator[_Place]:
        # By time and not by rank: what is removed meanwhile shifts the ranks, and nothing may be passed over.
        key, seen = Keys(self._broker.namespace, queue).dead, set[bytes]()
        while True:
            start, end = (least, most) if oldest_first else (most, least)
            chunk: list[tuple[bytes, float]] = self._broker.client.zrange(
                key, start, end, desc=not oldest_first, byscore=True, withscores=True, offset=0, num=CHUNK + len(seen)
            )
            fresh = [(entry, int(died)) for entry, died in chunk if entry not in seen]
            if not fresh:
                return
            yield from (_Place(died, queue, entry) for entry, died in fresh)
            edge = fresh[-1][1]
            seen = {entry for entry, died in chunk if int(died) == edge}
            least, most = (edge, most) if oldest_first else (least, edge)

    def _read(self, queue: str, entries: list[bytes]) -> list[DeadLetter | None]:
        keys = Keys(self._broker.namespace, queue)
        if not entries:
            return []
        with self._broker.client.pipeline(transaction=False) as pipeline:
            pipeline.hmget(keys.dead_letters, entries)
            pipeline.hmget(keys.dead_messages, entries)
            records, messages = pipeline.execute()
        return [_letter(queue, *each) for each in zip(entries, records, messages, strict=True)]

    @contextmanager
    def _reaching(self) -> Generator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise self._broker.unavailable(error) from error


def reprocess_dead_letters(limit: int = 10) -> int:
    """Put the oldest dead letters of all queues of the configured broker back on their queues. Returns their number."""
    from service.broker import broker

    return DeadLetters(broker).replay_many(by="reprocess_dead_letters", limit=limit).replayed


def _letter(queue: str, entry: bytes, record: bytes | None, stored: bytes | None) -> DeadLetter | None:
    if record is None or stored is None:
        return None
    try:
        return dead_letter.read(entry, queue, record, stored)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        logger.error("A dead letter can't be read: %r", error, extra={"entry": entry, "queue": queue})
        return None


def _by_whom(by: str, why: str) -> str:
    return json.dumps({"by": storable(by)[:BRIEF_CHARACTERS], "why": storable(why)[:BRIEF_CHARACTERS]})


def _about(letter: DeadLetter, by: str, why: str) -> dict[str, str]:
    about = {"job_id": letter.job_id, "type": letter.function, "queue": letter.original_queue}
    return {**about, "reason": letter.reason.value, "by": by, "why": why}


def _cursor(place: _Place) -> str:
    return f"{place.died_ms}.{place.queue}.{place.entry.hex()}"


def _read_cursor(cursor: str) -> _Place:
    try:
        died, queue, entry = cursor.split(".")
        return _Place(int(died), queue, bytes.fromhex(entry))
    except ValueError:
        raise InvalidRequest([("cursor", "must be the cursor of a page before, or absent for the first")]) from None
