"""Which of many jobs have ended: one look for all who wait."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from uuid import UUID

from sqlalchemy import Engine, select

from service.broker import RedisBroker
from service.errors import HistoryUnavailable
from service.state.database import reaching
from service.state.pause import Pause
from service.state.states import ENDS
from service.state.tables import jobs

LOOK_SECONDS = 2.5


class Endings:
    """Looks at the final events that Redis keeps until they are stored, and then at what is stored."""

    def __init__(self, engine: Engine, broker: RedisBroker, pause: Pause) -> None:
        self._engine = engine
        self._broker = broker
        self._pause = pause

    def among(self, waiting: Mapping[str, Collection[UUID]]) -> set[UUID]:
        """Return those of the jobs, given by their queue, that have ended. Raises BrokerUnavailable."""
        ended: set[UUID] = set()
        for queue, job_ids in waiting.items():
            ended |= {UUID(entry) for entry in self._broker.ended_among(queue, [str(job_id) for job_id in job_ids])}
        # After Redis: what has gone from there since is stored by now.
        rest = {job_id for job_ids in waiting.values() for job_id in job_ids} - ended
        if rest:
            # While nothing can be stored, whatever ends is in Redis.
            with suppress(HistoryUnavailable):
                ended |= self._stored(rest)
        return ended

    def _stored(self, job_ids: Collection[UUID]) -> set[UUID]:
        found = select(jobs.c.job_id).where(jobs.c.job_id.in_(job_ids), jobs.c.state.in_(ENDS))
        with self._pause.around(), reaching(self._engine, LOOK_SECONDS), self._engine.connect() as connection:
            return set(connection.execute(found).scalars())
