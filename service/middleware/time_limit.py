"""Interrupts a job that runs longer than it may, and tells of one that can't be interrupted.

Dramatiq's own keeps its deadlines behind one lock that every job takes twice, and interrupts a thread after it has let
go of that lock: the job may have ended in between, and the thread's next one is hit. Here a thread writes its own
deadline without a lock, and a delivery is interrupted only while its actor's function runs.
"""

import logging
import time
from dataclasses import dataclass
from math import inf
from threading import Thread
from typing import Any, NamedTuple, cast

from dramatiq.actor import Actor
from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import TimeLimit as DramatiqTimeLimit
from dramatiq.middleware import TimeLimitExceeded

from service.broker.delivery import Delivery
from service.errors import SoftTimeLimit
from service.middleware.defaults import WrongOptions
from service.observe.overdue import overdue_jobs

#: How late a limit may be noticed.
LOOK_SECONDS = 0.2
#: How long a job may take to end after it was interrupted, before it counts as one that can't be.
GRACE_SECONDS = 5.0
#: The words of the error.
EXCEEDED = "The job ran for longer than its timeout"

logger = logging.getLogger(__name__)


class TimeLimit(DramatiqTimeLimit):
    """Holds the options `time_limit`, an actor's or one message's, and `soft_time_limit`, an actor's: milliseconds.

    Code that does not return to Python is interrupted when it does: `isolation="process"` is for that.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.deadlines = Deadlines()
        self.manager: Any = self.deadlines

    @property
    def actor_options(self) -> set[str]:
        return {"time_limit", "soft_time_limit"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        soft, hard = actor.options.get("soft_time_limit"), actor.options.get("time_limit")
        for name, value in (("soft_time_limit", soft), ("time_limit", hard)):
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > 0):
                raise WrongOptions(f"{actor.actor_name}: {name}={value!r} must be a number of milliseconds over 0")
        if soft is not None and hard is not None and soft >= hard:
            raise WrongOptions(
                f"{actor.actor_name}: soft_timeout={soft / 1000:g} s must be less than timeout={hard / 1000:g} s, "
                "which else ends the job first"
            )

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        self.deadlines.start_clock(message, *self.limits_of(broker, message))

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        self.deadlines.forget(message)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        self.deadlines.forget(message)

    def limits_of(self, broker: Broker, message: MessageProxy) -> tuple[float, float | None]:
        """Return hard and soft limit of a message, in milliseconds."""
        options = cast("Any", broker).get_actor(message.actor_name).options
        return (
            message.options.get("time_limit") or options.get("time_limit", self.time_limit),
            options.get("soft_time_limit"),
        )


class _Clock(NamedTuple):
    delivery: Delivery
    soft_at: float
    hard_at: float


@dataclass(slots=True)
class _Done:
    """What was done about a job that is over a limit."""

    delivery: Delivery
    is_soft_over: bool = False
    interrupted_at: float = inf
    is_told: bool = False


class Deadlines:
    """The deadlines of what this process runs. Each job's thread changes only the job's own."""

    def __init__(self) -> None:
        # By the identity of the delivery: two of one message may be here.
        self._clocks: dict[int, _Clock] = {}
        self._done: dict[int, _Done] = {}

    def start(self) -> None:
        """Look after the deadlines for as long as the process lives."""
        Thread(target=self._run, name="time-limits", daemon=True).start()

    def start_clock(self, delivery: Delivery, hard_ms: float, soft_ms: float | None = None) -> None:
        """Count from now on, in place of what was counted for this delivery before."""
        now = time.monotonic()
        soft_at = inf if soft_ms is None else now + soft_ms / 1000
        self._clocks[id(delivery)] = _Clock(delivery, soft_at, now + hard_ms / 1000)

    def forget(self, delivery: MessageProxy) -> None:
        """Count no more."""
        self._clocks.pop(id(delivery), None)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                self.look(time.monotonic())
            except Exception:
                logger.exception("Looking after the time limits has failed")

    def look(self, now: float) -> None:
        """Interrupt what is over its limit, and tell of what goes on all the same."""
        for key, done in list(self._done.items()):
            clock = self._clocks.get(key)
            if clock is None or clock.delivery is not done.delivery:
                del self._done[key]
                overdue_jobs.now -= done.is_told
        for key, clock in list(self._clocks.items()):
            # A clock may have been started anew since: it says what holds.
            if now >= min(clock.soft_at, clock.hard_at) and self._clocks.get(key) is clock:
                _act(clock, self._done.setdefault(key, _Done(clock.delivery)), now)


def _act(clock: _Clock, done: _Done, now: float) -> None:
    delivery, fields = clock.delivery, {"job_id": clock.delivery.message_id, "actor": clock.delivery.actor_name}
    if now >= clock.hard_at:
        if done.interrupted_at == inf:
            if delivery.interrupt(TimeLimitExceeded):
                done.interrupted_at = now
                logger.warning("The time limit is over: the job is interrupted", extra=fields)
        elif now >= done.interrupted_at + GRACE_SECONDS and not done.is_told and delivery.runner is not None:
            done.is_told = True
            overdue_jobs.now += 1
            overdue_jobs.total += 1
            logger.error(
                "The job can't be interrupted and keeps its thread. Its actor may ask for isolation='process'",
                extra=fields,
            )
    elif not done.is_soft_over and delivery.interrupt(SoftTimeLimit):
        done.is_soft_over = True
        logger.warning("The soft time limit is over: the job is told so", extra=fields)
