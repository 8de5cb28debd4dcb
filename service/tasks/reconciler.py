"""Keeps tasks and their jobs together, whichever process died between the two.

It sends what was not sent, with the same job id; writes the outcome of a job whose own news of it was lost; and starts
a job once more that is known nowhere, as after a loss of Redis. It runs in the projector's process. Several may run,
and be killed at any point: what they do is safe to repeat.
"""

import logging
from threading import Event, Thread

import redis
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.broker.messages import decode_message
from service.errors import BrokerUnavailable, CallboardError, HistoryUnavailable, JobExists
from service.state.history import History
from service.state.snapshot import Snapshot
from service.state.states import is_final
from service.tasks.runs import Run, Runs

#: For so long Redis refuses a second send of one job.
ONCE_WITHIN_SECONDS = 24 * 3600
PAUSE_SECONDS = 1.0
CHUNK = 100
#: A job that was sent so long ago, and that neither Redis nor the database knows, is lost.
LOST_AFTER_SECONDS = 30.0
LOST = "The job was lost: neither Redis nor the database knows it"

logger = logging.getLogger(__name__)


class TaskReconciler:
    """Looks at runs when their time has come."""

    def __init__(self, broker: RedisBroker, engine: Engine) -> None:
        self._broker = broker
        self._history = History(engine, broker)
        self._runs = Runs(engine)
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Work from a thread of its own, through outages of either server, until `stop`."""
        self._thread = Thread(target=self._run, name="task-reconciler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        failing = False
        while not self._stop.is_set():
            try:
                full = self.step() == CHUNK
                failing = False
            except (CallboardError, redis.RedisError) as error:
                full = False
                if not failing:  # the projector beside it says the same each time
                    logger.warning("Tasks can't be looked at now: %s", error)
                failing = True
            except Exception:
                full = False
                logger.exception("Tasks can't be looked at")
            if not full:
                self._stop.wait(PAUSE_SECONDS)

    def step(self) -> int:
        """Look at up to CHUNK runs, and return how many. Raises HistoryUnavailable, BrokerUnavailable."""
        due = self._runs.claim(CHUNK)
        for run in due:
            if self._stop.is_set():
                break
            try:
                self._look(run)
            except (HistoryUnavailable, BrokerUnavailable):
                raise
            except Exception:
                # One that can't be looked at must not hold up the others.
                logger.exception("A task can't be looked at", extra=_fields(run))
        return len(due)

    def _look(self, run: Run) -> None:
        live = self._broker.find_record(str(run.job_id))
        # Where Redis knows nothing any more, the job's end is in the database by now.
        snapshot = self._history.find(run.job_id) if live is None else Snapshot.from_event(live)
        if snapshot and is_final(snapshot.state):
            if self._runs.end(run.task_id, snapshot):
                logger.info("The outcome of a task was written by the reconciler", extra=_fields(run))
        elif live is not None:
            if run.sent_seconds is None:
                self._runs.note_sent(run.job_id)
        elif run.sent_seconds is None:
            self._send(run)
        elif run.sent_seconds > LOST_AFTER_SECONDS:
            logger.warning("The job of a task is lost", extra=_fields(run))
            if not self._send(run):
                # Redis knows that it was sent, and so was not emptied: it may have run to its end.
                self._runs.fail(run, LOST)

    def _send(self, run: Run) -> bool:
        try:
            is_new = self._broker.send(decode_message(run.message), once_within_seconds=ONCE_WITHIN_SECONDS)
        except JobExists as error:
            logger.warning("The job of a task has to wait: %s", error, extra=_fields(run))
            return True
        except BrokerUnavailable:
            raise
        except CallboardError as error:
            self._runs.fail(run, str(error))
            return True
        self._runs.note_sent(run.job_id)
        logger.info("The job of a task was sent by the reconciler", extra={**_fields(run), "is_new": is_new})
        return bool(is_new)


def _fields(run: Run) -> dict[str, str]:
    return {"task_id": str(run.task_id), "job_id": str(run.job_id)}
