"""The supervisor's own life: from the lock to the last process that ends."""

import logging
import os
import signal
import time
from collections.abc import Callable
from threading import Event, Thread

from service.cli.failure import CommandFailed
from service.cli.stopping import react_to_signals
from service.cli.supervise.backoff import Backoff
from service.cli.supervise.child import Child
from service.cli.supervise.supervisor import Supervisor
from service.cli.up.draining import drain
from service.cli.up.leftovers import end_leftovers
from service.cli.up.lock import UpLock
from service.cli.up.output import Output, OutputHandler, Tail
from service.cli.up.parts import RESERVED, worker_name
from service.cli.up.plan import Plan, make_plan, present_environment
from service.cli.up.records import SUPERVISOR, Record, Records
from service.cli.up.stack import Stack, Stopped
from service.cli.up.state_dir import StateDir
from service.cli.up.summary import summary
from service.queues import QUEUES
from service.settings import Settings

OWN_NAME = "callboard"

#: While `up` starts, what dies is tried again soon, so that a start that can't succeed fails within seconds.
AT_START = Backoff(first_seconds=0.2)

LOCK_CHECK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Run:
    """One `callboard up`, for a process that holds the lock."""

    def __init__(self, state: StateDir, settings: Settings, lock: UpLock, *, detached: bool) -> None:
        self._state = state
        self._settings = settings
        self._lock = lock
        self._detached = detached
        self._stop = Event()
        self._hurry = Event()
        self._records = Records(state.run)
        self._output = Output(width=max(map(len, [OWN_NAME, *RESERVED, *map(worker_name, QUEUES)])))
        self._tail = Tail(self._output)
        self._plan: Plan | None = None
        self._supervisor = Supervisor(AT_START, on_start=self._note_start, on_end=self._note_end)

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Start, call `on_ready` with the summary, and keep all running until a signal. Raises CommandFailed."""
        began = time.monotonic()
        self._listen_to_signals()
        self._log_to_output()
        Thread(target=self._watch_lock, name="lock", daemon=True).start()
        try:
            plan = self._plan = self._prepare()
            Stack(plan, self._supervisor, self._stop).start()
            self._supervisor.backoff = Backoff()
            on_ready(summary(plan, detached=self._detached, seconds=time.monotonic() - began))
            while not self._stop.wait(0.1):
                self._supervisor.tick()
        except Stopped:
            logger.info("Stopped before all was ready")
        except OSError as error:
            raise CommandFailed(f"`callboard up` can't go on: {error}") from error
        finally:
            held = self._lock.is_held()
            self._end()
        if not held:
            raise CommandFailed(f"Stopped: {self._why_lost}.")

    def _prepare(self) -> Plan:
        self._sign_lock()
        if ended := end_leftovers(self._state):
            logger.warning("Ended what an earlier run had left: %s", ", ".join(ended))
        for log in self._state.log.glob("*.log"):
            if log.stem != "up":
                log.unlink()
        plan = make_plan(self._state, self._settings, present_environment())
        self._sign_lock(plan.addresses.api_url)
        if not self._detached:
            self._tail.start()
        self._say_what_was_chosen(plan)
        return plan

    def _sign_lock(self, url: str = "") -> None:
        self._lock.sign(Record.of(SUPERVISOR, os.getpid(), url))

    def _watch_lock(self) -> None:
        """Stop when another `up` could start here, which would run all of this a second time."""
        while not self._stop.wait(LOCK_CHECK_SECONDS):
            if not self._lock.is_held():
                logger.warning("Stopping everything: %s", self._why_lost)
                self._stop.set()

    @property
    def _why_lost(self) -> str:
        return f"{self._state.lock} was deleted or moved while Callboard ran there"

    def _say_what_was_chosen(self, plan: Plan) -> None:
        addresses = plan.addresses
        logger.info("Starting: API on port %d, mail on port %d", addresses.api_port, addresses.smtp_port)
        for name, port in plan.taken.items():
            logger.info("Port %d is taken, so %s gets the next free one", port, name)

    def _end(self) -> None:
        if self._plan is not None:
            # So that, once the API has ended, clients are refused instead of waiting for an answer.
            self._plan.api.close()
        drain(self._supervisor, self._hurry)
        if self._lock.is_held():
            # A killed process may have left others; and PostgreSQL's are no members of its group.
            end_leftovers(self._state)
        self._tail.stop()

    def _note_start(self, child: Child) -> None:
        if child.pid is not None:
            self._records.write(child.name, child.pid)
        if child.program.log is not None:
            self._tail.add(child.name, child.program.log)

    def _note_end(self, child: Child) -> None:
        self._records.forget(child.name)

    def _listen_to_signals(self) -> None:
        def react(number: int) -> None:
            if number == signal.SIGINT and self._stop.is_set():
                self._hurry.set()
            self._stop.set()

        react_to_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), react)

    def _log_to_output(self) -> None:
        handler = OutputHandler(self._output, OWN_NAME)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
