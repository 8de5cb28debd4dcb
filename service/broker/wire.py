"""Calls the scripts: what a process says to Redis about one queue, and what it reads from the replies.

Every method raises redis.RedisError. None is repeated here: who calls knows what may be repeated.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import redis

from service.broker import events
from service.broker.caller import Argument, Call, Caller, Packed, pack
from service.broker.delivery import Lease
from service.broker.keys import Keys
from service.broker.messages import GROWTH_BYTES
from service.broker.notes import Note
from service.broker.outgoing import FollowUp
from service.broker.scripts import NAMES, source
from service.broker.settlement import Settlement
from service.broker.unique_keys import Met, UniqueKey
from service.errors import JobExists
from service.queues import QUEUES
from service.settings import MAX_MESSAGE_BYTES

LETTER_KEYS = ("dead", "dead_messages", "dead_letters", "untold")
#: Those of a send with a unique key.
UNIQUE_KEYS = (
    *("unique", "leases", "finals", "once", "once_until", "once_waiting"),
    *("lapses", "attempts", "progress", "checkpoints"),
)
#: Of what goes out, so much is looked at at a time.
MOST_OUTGOING = 1000
ENQUEUE_KEYS = ("ready", "delayed", "messages", "events", "counter", "waiters", "full")
#: The keys of each script, in its order. Those of one send come after them.
KEYS_OF: dict[str, tuple[str, ...]] = {
    "enqueue": ENQUEUE_KEYS,
    "enqueue_unique": ENQUEUE_KEYS,
    "fetch": (
        *("ready", "delayed", "messages", "events", "counter", "waiters"),
        *("leases", "deadlines", "lapses", "finals", *LETTER_KEYS, "attempts"),
        *("once", "once_until", "once_waiting", "outgoing", "progress", "checkpoints", "cancels", "paused"),
    ),
    "settle": (
        *("ready", "delayed", "messages", "events", "finals", "waiters"),
        *("leases", "deadlines", "lapses", *LETTER_KEYS, "attempts"),
        *("once", "once_until", "once_waiting", "outgoing", "progress", "checkpoints", "cancels"),
    ),
    "note": ("leases", "progress", "checkpoints", "events"),
    "replay": (
        *("ready", "delayed", "messages", "events", "finals", "waiters"),
        *("lapses", *LETTER_KEYS, "attempts"),
    ),
    "discard": (*LETTER_KEYS, "events"),
    "forget": ("finals",),
    "fold": ("events", "folded", "finals", "full"),
    "unfold": ("folded",),
    "claim": ("untold",),
    "relayed": ("outgoing",),
    "renew": ("leases", "deadlines"),
    "begin": ("leases",),
    "cancel": (
        *("ready", "delayed", "messages", "events", "finals", "waiters", "leases", "deadlines", "lapses", "attempts"),
        *("once", "once_until", "once_waiting", "progress", "checkpoints", "unique", "cancels"),
    ),
    "reschedule": (
        *("ready", "delayed", "messages", "events", "waiters", "leases", "once", "once_until", "once_waiting"),
    ),
    "pause": ("paused", "ready", "waiters"),
    "counts": ("ready", "delayed", "messages", "once_waiting", "leases", "dead", "attempts", "paused"),
    "purge": (
        *("ready", "delayed", "messages", "events", "finals", "waiters", "leases", "lapses", "attempts"),
        *("once", "once_until", "once_waiting", "progress", "checkpoints", "unique", *LETTER_KEYS),
    ),
    "report": ("workers",),
    "restore": (
        *("ready", "delayed", "messages", "events", "finals", "waiters", "counter", "leases", "deadlines"),
        *("dead", "dead_messages", "dead_letters", "unique", "restored"),
    ),
    "remember": ("once", "once_until"),
    "point": (),
    "holder": ("once", "leases", "deadlines"),
}
MOST_PRODUCERS = 1000
MOST_FORGOTTEN = 1000


class Row(NamedTuple):
    """One message to be sent. `priority` 0 (first) to 9; `delay_ms` None for at once; `key` empty for none."""

    entry: str
    actor: str
    priority: int
    delay_ms: int | None
    attempt: int
    max_deliveries: int
    data: bytes
    key: str = ""
    unique: UniqueKey | None = None

    def packed(self) -> bytes:
        """Return it as enqueue.lua takes it."""
        entry, actor, priority, delay_ms, attempt, most, data, key, _ = self
        if key:
            actor = f"{actor}\t{key}"
        delay = "-" if delay_ms is None else delay_ms
        return f"{entry} {priority} {delay} {attempt} {most} {actor}\n".encode() + data


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch gave: leases with actor and message, and the ms until it is worth asking again, or None.

    has_outgoing: whether something waits to be relayed to its queue.
    """

    messages: list[tuple[Lease, str, bytes]]
    soonest_ms: int | None
    has_outgoing: bool = False
    #: Deaths to tell of: of what was made a dead letter instead, and maybe of what another worker has left.
    died: int = 0


@dataclass(frozen=True, slots=True)
class Folded:
    """What a call of fold.lua has done: entries folded, entries left, bytes of all that is not stored."""

    entries: int
    left: int
    used_bytes: int
    is_full: bool


class Wire:
    """One process's side of the scripts."""

    def __init__(self, client: Any, namespace: str, worker_id: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._client = client
        self._namespace = namespace
        self._worker_id = worker_id
        self._most_bytes = max_message_bytes + GROWTH_BYTES
        self._scripts = Caller(client, {name: source(name) for name in NAMES})
        self._constants = {(script, queue): _constant(namespace, queue, script) for script in NAMES for queue in QUEUES}
        self._for_producer: dict[tuple[str, str], Packed] = {}

    def enqueue(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int], once_within_seconds: int = 0
    ) -> bool | Met:
        """Put messages on a queue. `send` is the producer and the number of its send. Returns False if refused.

        Where the only row has a unique key that another job has, raises JobExists or returns that; several rows have
        none.
        """
        reply = self._scripts.call(self._enqueue_call(queue, rows, send, once_within_seconds))
        if isinstance(reply, bytes):
            raise _exists(reply, rows)
        return _met(cast("Any", reply)) if isinstance(reply, list) else reply != -1

    def enqueue_each(
        self, queue: str, batches: Iterable[tuple[Sequence[Row], tuple[str, int]]]
    ) -> Iterator[redis.RedisError | JobExists | Met | None]:
        """Enqueue batches in order, each sent while Redis works on the one before. Gives what went wrong with each, or
        the job that it has met.

        Where the connection fails, the error is given for the next batch too, if that was sent already.
        """
        sent: deque[Sequence[Row]] = deque()

        def calls() -> Iterator[Call]:
            for rows, send in batches:
                sent.append(rows)
                yield self._enqueue_call(queue, rows, send)

        for reply in self._scripts.call_each(calls()):
            rows = sent.popleft()
            if isinstance(reply, bytes):
                yield _exists(reply, rows)
            elif isinstance(reply, list):
                yield _met(cast("Any", reply))
            else:
                yield reply if isinstance(reply, redis.RedisError) else None

    def _enqueue_call(
        self, queue: str, rows: Sequence[Row], send: tuple[str, int], once_within_seconds: int = 0
    ) -> Call:
        producer, number = send
        first = rows[0]
        if first.unique:
            keys = Keys(self._namespace, queue)
            own = (keys.producer(producer), keys.sent(first.entry), *(getattr(keys, name) for name in UNIQUE_KEYS))
            constant = _constant(self._namespace, queue, "enqueue_unique", *own)
            arguments: list[Argument] = [number, once_within_seconds, first.packed(), *first.unique.packed()]
            return Call("enqueue_unique", constant, arguments)
        if once_within_seconds:
            keys = Keys(self._namespace, queue)
            constant = _constant(self._namespace, queue, "enqueue", keys.producer(producer), keys.sent(first.entry))
        else:
            constant = self._enqueue_constant(queue, producer)
        return Call("enqueue", constant, [number, once_within_seconds, *[row.packed() for row in rows]])

    def _enqueue_constant(self, queue: str, producer: str) -> Packed:
        key = (queue, producer)
        constant = self._for_producer.get(key)
        if constant is None:
            if len(self._for_producer) >= MOST_PRODUCERS:
                self._for_producer.clear()  # threads come and go, each with a producer of its own
            own = Keys(self._namespace, queue).producer(producer)
            constant = self._for_producer[key] = _constant(self._namespace, queue, "enqueue", own)
        return constant

    def fetch(self, queue: str, count: int, *, lease_ms: int, wakeable_ms: int) -> Fetched:
        """Lease up to `count` messages. Where there are fewer, the process can be woken for `wakeable_ms`."""
        arguments: list[Argument] = [count, lease_ms, self._worker_id, wakeable_ms, self._most_bytes]
        call = Call("fetch", self._constants["fetch", queue], arguments)
        now, soonest, token, packed, died, outgoing = self._scripts.call(call)
        messages = list(_leased(queue, packed, started_ms=int(now), token=int(token)))
        return Fetched(messages, None if int(soonest) < 0 else int(soonest), outgoing == 1, died)

    def held(self, queue: str) -> list[tuple[Lease, str]]:
        """Return what Redis says that this process holds, with the actors. Looks at all leases of the queue."""
        keys = Keys(self._namespace, queue)
        mine = f" {self._worker_id}".encode()
        # Of a suspect that has begun, the lease ends otherwise: it was received.
        held_now = self._client.hgetall(keys.leases)
        leases = {entry: lease for entry, lease in held_now.items() if _holder_of(lease).endswith(mine)}
        if not leases:
            return []
        found: list[tuple[Lease, str]] = []
        messages = self._client.hmget(keys.messages, *leases)
        for (entry, held), stored in zip(leases.items(), messages, strict=True):
            if stored is not None:
                token, started, _ = held.split(b" ", 2)
                packed = b"%d 0 %b %b" % (len(stored.partition(b"\n")[2]), entry, stored)  # as a fetch packs it
                [(lease, actor, _)] = _leased(queue, packed, started_ms=int(started), token=int(token))
                found.append((lease, actor))
        return found

    def begin(self, lease: Lease) -> bool:
        """Note that a suspect begins. Returns whether this process still holds it."""
        return self._scripts.call(Call("begin", self._constants["begin", lease.queue], [lease.entry, lease.token])) == 1

    def settle(self, queue: str, batch: Sequence[Settlement]) -> list[str]:
        """Settle entries. Returns those that this process did not hold any more: of them nothing changed."""
        arguments: list[Argument] = []
        for each in batch:
            arguments.append(each.packed())
            if each.follow_ups:
                arguments += each.packed_follow_ups()
        call = Call("settle", self._constants["settle", queue], arguments)
        return [entry.decode() for entry in self._scripts.call(call)]

    def point(self, lease: Lease, keep_ms: int, instead_of: bytes = b"") -> bytes | None:
        """Let a key that is one for all queues count in a delivery's queue. Returns the pointer that forbids it."""
        pointer = Keys(self._namespace, lease.queue).once_pointer(lease.key)
        constant = _constant(self._namespace, lease.queue, "point", pointer)
        return self._scripts.call(Call("point", constant, [lease.token, keep_ms, instead_of]))

    def holder(self, queue: str, key: str) -> bytes | None:
        """Return who has a key in a queue, as holder.lua says. The queue may be one of another release."""
        return self._scripts.call(Call("holder", _constant(self._namespace, queue, "holder"), [key]))

    def renew(self, queue: str, leases: Sequence[Lease], *, lease_ms: int) -> tuple[list[str], list[str]]:
        """Extend leases. Returns the entries that this process does not hold any more, and those that are cancelled."""
        args: list[Argument] = [lease_ms]
        for lease in leases:
            args += [lease.entry, lease.token]
        call = Call("renew", self._constants["renew", queue], args)
        lost, cancelled = self._scripts.call(call)
        return [entry.decode() for entry in lost], [entry.decode() for entry in cancelled]

    def have_cancelled(self, queues: Sequence[str]) -> list[str]:
        """Return the queues of which something is cancelled that is held, by whichever worker."""
        with self._client.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.exists(Keys(self._namespace, queue).cancels)
            found = pipeline.execute()
        return [queue for queue, exists in zip(queues, found, strict=True) if exists]

    def run(self, script: str, queue: str, arguments: list[Argument]) -> Any:
        """Call a script that acts on one queue with no keys of its own, and return its reply, undecoded."""
        return self._scripts.call(Call(script, self._constants[script, queue], arguments))

    def note(self, queue: str, notes: Sequence[Note]) -> list[str]:
        """Keep what jobs say of themselves. Returns the entries that this process does not hold any more."""
        call = Call("note", self._constants["note", queue], [note.packed() for note in notes])
        return [entry.decode() for entry in self._scripts.call(call)]

    def checkpoint(self, lease: Lease) -> str | None:
        """Return what this job's attempts have kept for the next one, JSON."""
        found: bytes | None = self._client.hget(Keys(self._namespace, lease.queue).checkpoints, lease.entry)
        return None if found is None else found.decode()

    def progress(self, queue: str, entry: str) -> str | None:
        """Return how far a job says it is, JSON."""
        found: bytes | None = self._client.hget(Keys(self._namespace, queue).progress, entry)
        return None if found is None else found.decode()

    def replay(
        self,
        queue: str,
        entry: bytes,
        died_ms: int,
        *,
        request: str,
        delay_ms: int | None,
        log: str,
        data: bytes,
        key: str | None = None,
        unique: UniqueKey | None = None,
    ) -> int:
        """Put a dead letter back on its queue, with its key or another one. Returns what replay.lua does.

        Raises JobExists where another job has its unique key.
        """
        keys = Keys(self._namespace, queue)
        constant = _constant(self._namespace, queue, "replay", keys.replayed(request), keys.unique)
        owned: list[Argument] = ["", 0, ""]
        if unique:
            owned = [unique.key, unique.window_ms, " ended" if "ended" in unique.states else ""]
        delay = "-" if delay_ms is None else delay_ms
        arguments: list[Argument] = [entry, died_ms, delay, log, data, *owned, *([] if key is None else [key])]
        reply = self._scripts.call(Call("replay", constant, arguments))
        if isinstance(reply, bytes):
            raise JobExists(_job_of(reply), unique.key if unique else "")
        return int(reply)

    def discard(self, queue: str, letters: Iterable[tuple[bytes, int]], about: str) -> int:
        """Remove dead letters, each with the ms of its death, and tell of it. Returns how many of them were there."""
        arguments: list[Argument] = [about, *[part for letter in letters for part in letter]]
        return int(self._scripts.call(Call("discard", self._constants["discard", queue], arguments)))

    def claim(self, queue: str, count: int, *, for_ms: int) -> list[bytes]:
        """Take up to `count` deaths, `died_ms entry`, that nobody else is to tell of for a while."""
        return list(self._scripts.call(Call("claim", self._constants["claim", queue], [count, for_ms])))

    def forget(self, queue: str, ended: Sequence[tuple[str, int]]) -> None:
        """Drop final events, each with the ms of its time: they are stored elsewhere."""
        for start in range(0, len(ended), MOST_FORGOTTEN):
            arguments: list[Argument] = [part for each in ended[start : start + MOST_FORGOTTEN] for part in each]
            self._scripts.call(Call("forget", self._constants["forget", queue], arguments))

    def ended_among(self, queue: str, entries: Sequence[str]) -> list[str]:
        """Return those whose final event is kept here: they have ended, and that is not stored elsewhere."""
        if not entries:
            return []
        finals = self._client.hmget(Keys(self._namespace, queue).finals, entries)
        return [entry for entry, final in zip(entries, finals, strict=True) if final is not None]

    def fold(self, queue: str, from_bytes: int, most_bytes: int, *, refusal_ms: int) -> Folded:
        """Fold some of the oldest events, where all take more than `from_bytes`: see fold.lua."""
        arguments: list[Argument] = [from_bytes, most_bytes, refusal_ms]
        folded, left, used, full = self._scripts.call(Call("fold", self._constants["fold", queue], arguments))
        return Folded(folded, left, int(used), full == 1)

    def unfold(self, queue: str, stored: Sequence[tuple[bytes, bytes]]) -> None:
        """Drop folded records, each with the id of its last event: they are stored elsewhere."""
        for start in range(0, len(stored), MOST_FORGOTTEN):
            arguments: list[Argument] = [part for each in stored[start : start + MOST_FORGOTTEN] for part in each]
            self._scripts.call(Call("unfold", self._constants["unfold", queue], arguments))

    def close(self) -> None:
        """Give the connections back."""
        self._scripts.close()

    def find(self, job_id: str) -> dict[str, str] | None:
        """Return what Redis knows of a job, as an event of `events.read`."""
        return next(iter(self.find_among({queue: [job_id] for queue in QUEUES})), None)

    def find_among(self, by_queue: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
        """Return what Redis knows of jobs, each looked for in one queue, as events of `events.read`."""
        asked = {queue: job_ids for queue, job_ids in by_queue.items() if job_ids}
        with self._client.pipeline(transaction=False) as pipeline:
            for queue, job_ids in asked.items():
                keys = Keys(self._namespace, queue)
                pipeline.hmget(keys.finals, job_ids)
                pipeline.hmget(keys.messages, job_ids)
                pipeline.hmget(keys.leases, job_ids)
                pipeline.zmscore(keys.delayed, job_ids)
            replies = iter(pipeline.execute())
        found: list[dict[str, str]] = []
        for queue, job_ids in asked.items():
            columns = [next(replies) for _ in range(4)]
            for job_id, final, message, lease, due in zip(job_ids, *columns, strict=True):
                one = events.live(job_id, queue, final=final, message=message, lease=lease, due=due)
                if one is None:
                    continue
                if message is not None and self._waits_for_its_key(queue, job_id, message):
                    one["state"] = "waiting"
                found.append(one)
        return found

    def _waits_for_its_key(self, queue: str, entry: str, stored: bytes) -> bool:
        header, _, key = stored.partition(b"\n")[0].partition(b"\t")
        if not key:
            return False
        name = b"%b\t%b\t%b" % (key, header.partition(b" ")[0].rjust(16, b"0"), entry.encode())
        return self._client.zscore(Keys(self._namespace, queue).once_waiting, name) is not None

    def backlog(self, queue: str) -> int:
        """Return the number of messages that are not settled (ready, delayed and held), and of those going out."""
        keys = Keys(self._namespace, queue)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hlen(keys.messages)
            pipeline.llen(keys.outgoing)
            return sum(pipeline.execute())

    def outgoing(self, queue: str, count: int) -> list[bytes]:
        """Return the first of what jobs of this queue have sent, up to MOST_OUTGOING, as `FollowUp.unpack` reads it."""
        return self._client.lrange(Keys(self._namespace, queue).outgoing, 0, count - 1)

    def remove_outgoing(self, queue: str, element: bytes) -> None:
        """Note that this, which `outgoing` has returned, is in its own queue now."""
        self._scripts.call(Call("relayed", self._constants["relayed", queue], [MOST_OUTGOING, element]))

    def take_turn(self, queue: str, seconds: float) -> bool:
        """Say that this process relays what jobs of the queue have sent, unless another one does."""
        relaying = Keys(self._namespace, queue).relaying
        return bool(self._client.set(relaying, self._worker_id, nx=True, px=int(seconds * 1000)))

    def end_turn(self, queue: str) -> None:
        """Let another one relay. Whoever was paused may end another's turn, which repeats work and no message."""
        self._client.delete(Keys(self._namespace, queue).relaying)

    def store(self, nonce: str, follow_up: FollowUp, once_within_seconds: int) -> None:
        """Put what a job has sent on its queue, unless it was put there with this nonce before."""
        own = Keys(self._namespace, follow_up.queue)
        # All relays are one producer: what is sent is known by its nonce, which needs one key and not two.
        constant = _constant(self._namespace, follow_up.queue, "enqueue", own.producer("relay"), own.sent(nonce))
        self._scripts.call(Call("enqueue", constant, [nonce, once_within_seconds, follow_up.row]))

    def purge(self, queue: str) -> None:
        """Drop everything of a queue but its history."""
        keys = Keys(self._namespace, queue)
        self._client.delete(keys.ready, keys.delayed, keys.messages, keys.leases, keys.deadlines, keys.lapses)
        self._client.delete(keys.dead, keys.dead_messages, keys.dead_letters, keys.untold, keys.attempts)
        self._client.delete(keys.outgoing, keys.progress, keys.checkpoints)
        self._client.delete(keys.once, keys.once_until, keys.once_waiting, keys.unique, keys.cancels, keys.paused)


def _exists(reply: bytes, rows: Sequence[Row]) -> JobExists:
    assert rows[0].unique
    return JobExists(_job_of(reply), rows[0].unique.key)


def _met(reply: list[bytes]) -> Met:
    how, entry = reply
    return Met("replaced" if how == b"replaced" else "rescheduled", _job_of(entry))


def _job_of(entry: bytes) -> str:
    return entry.decode().partition("~")[0]


def _holder_of(lease: bytes) -> bytes:
    return lease.partition(b"\t")[0].removesuffix(b" cancelled")


def _leased(queue: str, packed: bytes, *, started_ms: int, token: int) -> Iterator[tuple[Lease, str, bytes]]:
    end = 0
    while end < len(packed):
        start = packed.index(b"\n", end) + 1
        words = packed[end : start - 1].decode(errors="replace").split(" ", 7)
        length, lapses, entry, score, created, attempt, most, named = words
        actor, _, key = named.partition("\t")
        end = start + int(length)
        lease = Lease(
            queue,
            entry,
            str(token),
            started_ms,
            int(created),
            int(attempt),
            0 if lapses == "=" else int(lapses),
            int(most),
            key,
            lapses == "=",
            int(score) >> 49,
        )
        yield lease, actor, packed[start:end]
        token += 1


def _constant(namespace: str, queue: str, script: str, *own_keys: str) -> Packed:
    """Pack what a script is given each time: the number of its keys, the keys, namespace and queue."""
    keys = Keys(namespace, queue)
    names = [*(getattr(keys, name) for name in KEYS_OF[script]), *own_keys]
    return pack([len(names), *names, namespace, queue])
