"""Interrupts a job that runs longer than it may.

Dramatiq's own keeps its deadlines behind one lock that every job takes twice, and interrupts a thread after it has let
go of that lock: the job may have ended in between, and the thread's next one is hit. Here a thread writes its own
deadline without a lock, and a delivery is interrupted only while it runs.
"""

import logging
import time
from threading import Thread, get_ident
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import TimeLimit as DramatiqTimeLimit
from dramatiq.middleware import TimeLimitExceeded

from service.broker.delivery import Delivery

LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class TimeLimit(DramatiqTimeLimit):
    """Holds the option `time_limit`, in milliseconds: an actor's, or one message's.

    A limit is looked at within a second. Code that does not return to Python is interrupted when it does.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.manager: Any = _Deadlines()

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        self.manager.running[get_ident()] = message
        super().before_process_message(broker, message)


class _Deadlines:
    """The deadlines of this process, by thread. Each thread changes only its own."""

    def __init__(self) -> None:
        self.running: dict[int, Delivery] = {}
        self._deadlines: dict[int, float] = {}

    def start(self) -> None:
        """Look after the deadlines for as long as the process lives."""
        Thread(target=self._run, name="time-limits", daemon=True).start()

    def add_timeout(self, thread_id: int, milliseconds: float) -> None:
        """Set the deadline of what runs in a thread."""
        self._deadlines[thread_id] = time.monotonic() + milliseconds / 1000

    def remove_timeout(self, thread_id: int) -> None:
        """Forget what has run in a thread."""
        self._deadlines.pop(thread_id, None)
        self.running.pop(thread_id, None)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                self._look()
            except Exception:
                logger.exception("Looking after the time limits has failed")

    def _look(self) -> None:
        now = time.monotonic()
        for thread_id, deadline in list(self._deadlines.items()):
            delivery = self.running.get(thread_id)
            # The deadline may have changed since: of the next job, or of this one's process that is ready now.
            if now < deadline or delivery is None or self._deadlines.get(thread_id) != deadline:
                continue
            if delivery.interrupt(TimeLimitExceeded):
                self._deadlines.pop(thread_id, None)
                logger.warning("The time limit is over: the job is interrupted", extra={"job_id": delivery.message_id})
