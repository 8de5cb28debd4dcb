"""Requests that wait for jobs to end: one look for all of them, four times a second."""

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.types import Receive

from service.api.leaving import Leaving
from service.api.lines import Line
from service.errors import CallboardError, ServiceBusy
from service.state.endings import Endings

LOOK_SECONDS = 0.25
MOST_WAITING = 2000
LONGEST_WAIT_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Waits:
    """The waiting requests of one application."""

    def __init__(self, endings: Endings, reads: Line, leaving: Leaving) -> None:
        self._endings = endings
        self._reads = reads
        self._leaving = leaving
        self._waiting: dict[str, dict[UUID, set[asyncio.Event]]] = defaultdict(dict)
        self._count = 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Requests that wait now."""
        return self._count

    @property
    def is_looking(self) -> bool:
        """Whether Redis and the database are asked for them."""
        return self._looking is not None and not self._looking.done()

    async def for_end(self, job_id: UUID, queue: str, seconds: float, receive: Receive) -> None:
        """Return when a job has ended, after some seconds, or when the client of a request has gone.

        Raises ServiceBusy where too many wait already.
        """
        if self._count >= MOST_WAITING:
            raise ServiceBusy(f"{MOST_WAITING} requests wait for jobs already")
        ended = asyncio.Event()
        others = self._waiting[queue].setdefault(job_id, set())
        others.add(ended)
        self._count += 1
        if not self.is_looking:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        # Clients give up and ask again: those that have gone would fill the places of those that are there.
        watching = asyncio.get_running_loop().create_task(_set_when_gone(receive, ended))
        try:
            await self._leaving.sleep(seconds, until=ended)
        finally:
            watching.cancel()
            self._count -= 1
            others.discard(ended)
            if not others and self._waiting[queue].get(job_id) is others:
                del self._waiting[queue][job_id]

    async def _look(self) -> None:
        while self._count:
            await asyncio.sleep(LOOK_SECONDS)
            waiting = {queue: list(jobs) for queue, jobs in self._waiting.items() if jobs}
            try:
                ended = await self._reads.run(self._endings.among, waiting)
            except CallboardError as error:
                logger.warning("Nobody knows which jobs have ended: %s", error)
                continue
            for jobs in self._waiting.values():
                for job_id in ended & jobs.keys():
                    for event in jobs[job_id]:
                        event.set()


async def _set_when_gone(receive: Receive, event: asyncio.Event) -> None:
    with suppress(HTTPException):  # of a body that is too long, and that nobody reads
        while (await receive())["type"] != "http.disconnect":
            pass
        event.set()
