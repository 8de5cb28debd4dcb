"""Jobs that were lost come back into their queue, and keys that were taken are taken again: for who rebuilds.

Each job comes back once for what is known of it, whoever asks and however often: see restore.lua.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from service.broker.caller import Argument
from service.broker.keys import Keys
from service.broker.redis_broker import RedisBroker
from service.broker.wide_keys import SPARE_MS

MOST_ROWS = 500
#: In one call: so that Redis is not held up, nor its buffers filled.
MOST_BYTES = 8 * 1024 * 1024
#: Field of `restored`, which is no job's id: this queue's dead letters are being brought back.
_LETTERS = "~dead-letters"
_RESTORED_SECONDS = 24 * 3600


class Restored(IntEnum):
    """What became of one job."""

    DONE = 1
    HERE = 0  # Redis knows it, or its end
    DONE_BEFORE = -1  # for what the database knows of it


class Lost(NamedTuple):
    """A job as it is to come back. `at_ms` is when it is due, None for at once, or when it has died."""

    entry: str
    sequence: int
    is_dead: bool
    rank: int
    priority: int
    at_ms: int | None
    created_ms: int
    attempt: int
    max_deliveries: int
    actor: str
    key: str
    event: str
    message: bytes
    unique: str = ""
    #: As `Keys.unique` has it after the entry.
    unique_ends: str = "0"

    def packed(self) -> bytes:
        """Return it as restore.lua takes it."""
        at = "-" if self.at_ms is None else self.at_ms
        named = f"{self.actor}\t{self.key}" if self.key else self.actor
        place = f"{'dead' if self.is_dead else 'job'} {self.entry} {self.sequence} {self.rank} {self.priority} {at}"
        header = f"{self.created_ms} {self.attempt} {self.max_deliveries} {named}"
        unique = f"{self.unique_ends}\t{self.unique}" if self.unique else ""
        return f"{place} {header}\n{unique}\n{self.event}\n".encode() + self.message


class Taken(NamedTuple):
    """An idempotency key, until when it is taken, and the record of the job that has taken it."""

    key: str
    until_ms: int
    record: str


class Restoring:
    """Brings things back into the queues of one broker. Every method raises BrokerUnavailable."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def now_ms(self) -> int:
        """The server's time."""
        with self._broker.reaching():
            seconds, micro = self._broker.client.time()
        return seconds * 1000 + micro // 1000

    def missing(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        """Return those jobs of which Redis has nothing: neither their message, nor their end, nor a dead letter."""
        keys = Keys(self._broker.namespace, queue)
        with self._broker.reaching(), self._broker.client.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                for key in (keys.messages, keys.finals, keys.dead_messages):
                    pipeline.hexists(key, job_id)
            found = pipeline.execute()
        return [job_id for number, job_id in enumerate(job_ids) if not any(found[number * 3 : number * 3 + 3])]

    def restore(self, queue: str, lost: Sequence[Lost]) -> list[Restored]:
        """Bring up to MOST_ROWS jobs back, and say what became of each."""
        floor_ms = max(one.sequence >> 20 for one in lost)
        arguments: list[Argument] = [floor_ms, *[one.packed() for one in lost]]
        with self._broker.reaching():
            return [Restored(reply) for reply in self._broker.wire.run("restore", queue, arguments)]

    def remember(self, queue: str, taken: Sequence[Taken]) -> int:
        """Keep up to MOST_ROWS keys taken, and return how many of them were free."""
        arguments: list[Argument] = [part for one in taken for part in one]
        with self._broker.reaching():
            return int(self._broker.wire.run("remember", queue, arguments))

    def point(self, queue: str, taken: Sequence[Taken]) -> None:
        """Let keys that are one for all queues count in this one, where they count in none."""
        now_ms = self.now_ms()
        with self._broker.reaching(), self._broker.client.pipeline(transaction=False) as pipeline:
            for one in taken:
                pointer = Keys(self._broker.namespace, queue).once_pointer(one.key)
                pipeline.set(pointer, f"{queue} 0", nx=True, px=max(one.until_ms - now_ms, 1) + SPARE_MS)
            pipeline.execute()

    def has_letters_of_its_own(self, queue: str) -> bool:
        """Whether a queue has dead letters, and nobody is bringing others back to it."""
        keys = Keys(self._broker.namespace, queue)
        with self._broker.reaching():
            return bool(self._broker.client.exists(keys.dead)) and not self._broker.client.hexists(
                keys.restored, _LETTERS
            )

    def begin_letters(self, queue: str) -> None:
        """Note that this queue's dead letters are being brought back: who goes on with that may do so."""
        key = Keys(self._broker.namespace, queue).restored
        with self._broker.reaching(), self._broker.client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, _LETTERS, "1")
            pipeline.expire(key, _RESTORED_SECONDS)
            pipeline.execute()
