"""How long dead letters are kept: by age and by count, each queue for itself, with an archive before they go.

Carried out by the projector that works, in small steps. A letter is written to the archive before it is removed: what a
killed projector had written and not removed is written once more.
"""

import base64
import json
import logging
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import IO, Any

from service.broker import RedisBroker
from service.broker.dead_letters import DeadLetters, Found
from service.queues import QUEUES
from service.settings import Settings

PAUSE_SECONDS = 30.0
#: Of each queue in one step: they are in memory together.
CHUNK = 20

logger = logging.getLogger(__name__)


class Retention:
    """Removes what is too old or too much."""

    def __init__(self, broker: RedisBroker, settings: Settings) -> None:
        self._letters = DeadLetters(broker)
        self._max_age_ms = settings.dead_letter_days * 24 * 3600 * 1000
        self._most = settings.dead_letters_most
        self._archive = settings.dead_letter_archive
        self._next_at = 0.0

    def step_if_due(self) -> None:
        """Take a step now and then: at once again while there is more to do. Raises BrokerUnavailable."""
        if monotonic() >= self._next_at and self.step() == 0:
            self._next_at = monotonic() + PAUSE_SECONDS

    def step(self) -> int:
        """Remove up to CHUNK letters of each queue, and return how many. Raises BrokerUnavailable."""
        return sum(self._step(queue) for queue in QUEUES)

    def _step(self, queue: str) -> int:
        found, count, now_ms = self._letters.oldest(queue, CHUNK)
        excess = count - self._most
        going = [one for rank, one in enumerate(found) if rank < excess or now_ms - one.died_ms > self._max_age_ms]
        if not going:
            return 0
        if self._archive:
            try:
                _append(self._archive, (_line(queue, one) for one in going))
            except OSError as error:
                logger.error("Dead letters can't be archived, and stay: %s", error, extra={"queue": queue})
                return 0
        removed = self._letters.discard(queue, going, by="retention", why="by age or count")
        fields = {"queue": queue, "number": removed, "archived": self._archive is not None}
        logger.info("Dead letters were removed by age or count", extra=fields)
        return removed


def _line(queue: str, found: Found) -> str:
    if found.letter:
        return json.dumps(found.letter.to_dict())
    raw: dict[str, Any] = {"entry_base64": base64.b64encode(found.entry).decode(), "original_queue": queue}
    return json.dumps(raw)


def _append(folder: Path, lines: Iterable[str]) -> None:
    file = folder / f"dead-letters-{datetime.now(UTC):%Y-%m-%d}.jsonl"
    with file.open("ab+", buffering=0) as archive:
        data = _end_of_broken_line(archive) + "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[archive.write(data) or 0 :]
        os.fsync(archive.fileno())


def _end_of_broken_line(archive: IO[bytes]) -> bytes:
    """Of whoever was killed or found the disk full half a line may stand there: what joins it could not be read."""
    if archive.seek(0, os.SEEK_END) == 0:
        return b""
    archive.seek(-1, os.SEEK_END)
    return b"" if archive.read(1) == b"\n" else b"\n"
