"""Runs one message as a worker does: Dramatiq's own thread calls the chain and the actor, here in the test's thread."""

import json
from collections import defaultdict
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, cast

from dramatiq.asyncio import get_event_loop_thread, set_event_loop_thread
from dramatiq.message import Message
from dramatiq.worker import WorkerThread

from service.broker import RedisBroker
from service.broker.delivery import Delivery, Lease
from service.broker.intake import Intake
from service.broker.outcome import Failure
from service.broker.outgoing import FollowUp
from service.broker.settlement import Settlement, settlement_of
from service.errors import CallboardError
from service.middleware.event_loop import EventLoop
from service.testing.memory import Waiting

STATE_OF = {"done": "succeeded", "retry": "retrying", "snooze": "snoozed", "dead": "dead", "cancelled": "cancelled"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How one run ended: `state`, result or error, and the bytes that are to run again after `delay_ms`."""

    delivery: Delivery | None
    state: str
    result: Any
    error: BaseException | None
    again: bytes = b""
    delay_ms: int = 0
    follow_ups: tuple[FollowUp, ...] = ()
    skipped: bool = False


class Runner:
    """Runs messages in the calling thread. An event loop is started for `async def` actors, until `stop`."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._settled: Settlement | None = None
        self._error: BaseException | None = None
        self._has_loop = False
        self._token = 0
        self._intake = Intake(self._find_actor, self._settle, unknown_actor_seconds=0)
        self._thread: Any = cast("Any", WorkerThread)(
            broker=broker, consumers=defaultdict(lambda: self), work_queue=self, worker_timeout=0
        )

    def run(self, waiting: Waiting, now_ms: int) -> Ended:
        """Run a message once."""
        self._start_loop()
        row = waiting.row
        self._token += 1
        lease = Lease(
            waiting.queue,
            row.entry,
            str(self._token),
            now_ms,
            waiting.sent_ms,
            row.attempt,
            0,
            row.max_deliveries,
            row.key,
        )
        self._settled = self._error = None
        delivery = self._intake.open(lease, row.actor, row.data)
        if delivery is None:
            return Ended(None, "dead", None, self._buried())
        # Never in a process of its own, which would import the actors anew, without what the test has replaced.
        delivery.lease = delivery.lease._replace(max_deliveries=max(2, row.max_deliveries))
        copy_context().run(self._thread.process_message, delivery)
        settlement = settlement_of(delivery)
        state = STATE_OF.get(settlement.outcome)
        if state is None:
            raise RuntimeError(f"A job ended in the outcome {settlement.outcome!r}, which needs Redis")
        if state in ("retrying", "snoozed"):
            words = settlement.data or b""
            if state == "retrying":
                words = words.partition(b"\n")[2]  # behind what the attempt's log says of the failure
            delay, _, again = words.partition(b" ")
            return Ended(delivery, state, None, self._error, again, int(delay))
        result = json.loads(getattr(delivery.outcome, "result", "null")) if state == "succeeded" else None
        return Ended(delivery, state, result, self._error, follow_ups=settlement.follow_ups)

    def stop(self) -> None:
        """End the event loop."""
        if self._has_loop:
            loop: Any = get_event_loop_thread()
            loop.stop()
            loop.join()
            set_event_loop_thread(None)
            self._has_loop = False

    def announce(self, message: Message[Any], delay_ms: int) -> None:
        """Call the hooks that a worker calls when a retry is stored."""
        self._broker.emit_after("enqueue", message, delay_ms)

    def post_process_message(self, message: Any) -> None:
        """Take the place of Dramatiq's consumer."""
        self._error = message._exception

    def task_done(self) -> None:
        """Take the place of Dramatiq's work queue."""

    def _start_loop(self) -> None:
        if get_event_loop_thread() is None:
            EventLoop().before_worker_boot(self._broker, None)
            self._has_loop = True

    def _find_actor(self, name: str) -> Any:
        return self._broker.get_actor(name) if self._broker.is_named(name) else None

    def _settle(self, settlement: Settlement) -> None:
        self._settled = settlement

    def _buried(self) -> BaseException:
        assert self._settled
        failure = Failure(**json.loads(json.loads(self._settled.event)["error"]))
        return CallboardError(f"{failure.type}: {failure.message}")
