"""Streams that follow jobs: one look at the history for all of them, twice a second."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from service.api.leaving import Leaving
from service.api.lines import Line
from service.errors import CallboardError, ServiceBusy
from service.state.following import Followed
from service.state.history import History
from service.state.states import is_final
from service.state.step import Mark, Step

LOOK_SECONDS = 0.5
#: Sent where nothing else is: so that proxies keep the connection, and a client that has gone is noticed.
PING_SECONDS = 10.0
#: After a job's end, for what it has said last: log lines and progress take their own way, and may come behind it.
LATE_SECONDS = 1.0
MOST_STREAMS = 1000

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Follower:
    job: Followed
    seen: Mark
    steps: list[Step] = field(default_factory=list[Step])
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Followers:
    """The streams of one application."""

    def __init__(self, history: History, reads: Line, leaving: Leaving) -> None:
        self._history = history
        self._reads = reads
        self._leaving = leaving
        self._followers: set[_Follower] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Streams that are open."""
        return len(self._followers)

    @property
    def is_looking(self) -> bool:
        """Whether the history is asked for them."""
        return self._looking is not None and not self._looking.done()

    def check(self) -> None:
        """Raise ServiceBusy where no further stream may be opened."""
        if self.count >= MOST_STREAMS:
            raise ServiceBusy(f"{MOST_STREAMS} streams are open already")

    async def follow(self, job: Followed, seen: Mark, *, has_ended: bool) -> AsyncGenerator[list[Step]]:
        """Give what happens to a job, in order, and an empty list now and then; ends soon behind a final state.

        `has_ended` says whether there was one in what has been seen. It counts as open from its first step on, so that
        one which was never begun leaves nothing behind.
        """
        follower = _Follower(job, seen)
        self._followers.add(follower)
        try:
            while not self._leaving.is_set:
                if not self.is_looking:
                    self._looking = asyncio.get_running_loop().create_task(self._look())
                await self._leaving.sleep(LATE_SECONDS if has_ended else PING_SECONDS, until=follower.woken)
                steps, follower.steps = follower.steps, []
                follower.woken.clear()
                if has_ended and not steps:
                    return
                yield steps
                if states := [step.state for step in steps if step.state is not None]:
                    has_ended = is_final(states[-1])
        finally:
            self._followers.discard(follower)

    async def _look(self) -> None:
        while self._followers:
            followers = list(self._followers)
            oldest: dict[Followed, Mark] = {}
            for each in followers:
                oldest[each.job] = min(oldest.get(each.job, each.seen), each.seen)
            try:
                found = await self._reads.run(self._history.steps_since, oldest)
            except CallboardError as error:
                logger.warning("Nobody knows what has happened to the jobs that are followed: %s", error)
                found = {}
            for each in followers:
                new = [step for step in found.get(each.job.job_id, []) if step.mark > each.seen]
                if new:
                    each.seen = new[-1].mark
                    each.steps += new
                    each.woken.set()
            await asyncio.sleep(LOOK_SECONDS)
