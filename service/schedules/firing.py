"""Fires one schedule: decides what is due, stores the decision once, and sends what it says.

The state with its outbox is replaced only if nobody else has done so, so the schedulers decide each due time once,
whatever their clocks say. What the outbox holds is sent by whoever sees it: a job's id is taken once, by Redis and by a
row of PostgreSQL. A crash at any point leaves nothing undecided that is sent, and nothing unsent that nobody knows of.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from service.broker import RedisBroker
from service.errors import CallboardError, HistoryUnavailable, JobExists
from service.schedules.decide import decide, first_state
from service.schedules.entry import Entry
from service.schedules.messages import job_id_in, message_for
from service.schedules.state import Run, ScheduleState, alive
from service.schedules.states import States

if TYPE_CHECKING:
    # It needs the database's driver, which a scheduler of schedules in code does without.
    from service.schedules.ledger import Ledger

#: Longer than any scheduler is paused between its decision and its send.
ONCE_WITHIN_SECONDS = 24 * 3600
ENDED = {"succeeded", "dead", "cancelled"}

logger = logging.getLogger(__name__)


class Firing:
    """Fires schedules for a scheduler, or one by hand for an operator."""

    def __init__(
        self, broker: RedisBroker, ledger: "Ledger | None" = None, is_followed: Callable[[Entry], bool] | None = None
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._is_followed = is_followed or _counts_failures
        self.states = States(broker)
        #: What this process knew last: it counts where Redis was emptied.
        self._known: dict[str, ScheduleState] = {}

    def fire(self, entry: Entry, now: datetime) -> ScheduleState:
        """Send what is due. Returns the state, whose version is higher than the entry's if that is an old copy.

        Raises BrokerUnavailable.
        """
        schedule = entry.schedule
        while True:
            before = self.states.read(schedule.name)
            state = before.state or self._remembered(entry, now)
            if schedule.version and state.version > schedule.version:
                return state
            if state.is_deleted:
                if schedule.version == state.version:
                    return state
                state = first_state(schedule, now)  # made anew under the same name
            elif before.state and state.outbox:
                # First: while its queue takes nothing, what comes due is missed, and does not wait here in a heap.
                self._send_outbox(entry, state, now)
                continue
            after = decide(
                schedule,
                state,
                now,
                is_running=schedule.overlap == "skip" and self._is_running(state),
                is_followed=self._is_followed(entry),
                job_id_of=partial(job_id_in, self._broker.namespace),
            )
            if (after is state and before.state) or self.states.replace(schedule.name, before, after):
                break
        self._log_what_was_missed(schedule.name, state, after)
        return self._send_outbox(entry, after, now)[0]

    def run_now(self, entry: Entry, run: Run, now: datetime) -> str | None:
        """Send a job beside those that are due. Returns what is wrong where it is refused.

        Raises BrokerUnavailable: it may be sent all the same, then or later.
        """

        def with_run(state: ScheduleState | None) -> ScheduleState:
            state = alive(state) or self._remembered(entry, now)
            followed = (*state.followed, run) if self._is_followed(entry) else state.followed
            outbox = (*state.outbox, run)
            return state.changed(now, outbox=outbox, last_run=run, sent=state.sent + 1, followed=followed)

        state = self.states.change(entry.schedule.name, with_run)
        assert state is not None
        return self._send_outbox(entry, state, now)[1].get(run.job_id)

    def _remembered(self, entry: Entry, now: datetime) -> ScheduleState:
        """Return the newest that is known of a schedule that Redis does not know, or a first state."""
        copies = [self._known.get(entry.schedule.name)]
        if self._ledger:
            try:
                copies.append(self._ledger.state_of(entry.schedule.name))
            except HistoryUnavailable as error:
                logger.warning("What is known of a schedule can't be looked up: %s", error)
        known = [copy for copy in copies if copy]
        return max(known, key=lambda copy: copy.revision) if known else first_state(entry.schedule, now)

    def _is_running(self, state: ScheduleState) -> bool:
        # Both: one that was run by hand is no reason to forget the one before it.
        return any(self._has_not_ended(state, run) for run in {state.last_run, state.last_due} if run)

    def _has_not_ended(self, state: ScheduleState, run: Run) -> bool:
        if run in state.outbox:
            return True
        record = self._broker.find_record(run.job_id)
        return record is not None and record["state"] not in ENDED

    def _send_outbox(self, entry: Entry, state: ScheduleState, now: datetime) -> tuple[ScheduleState, dict[str, str]]:
        """Return the state after it, and what is wrong with those that are refused, by job."""
        name = entry.schedule.name
        self._known[name] = state
        if not state.outbox:
            return state, {}
        sent_before = self._claim(name, state)
        refused: dict[str, str] = {}
        for run in state.outbox:
            if run.job_id not in sent_before and (problem := self._send(entry, run)):
                refused[run.job_id] = problem
        ids = {run.job_id for run in state.outbox}
        self._note_sent(name, ids - refused.keys())
        state = self.states.change(name, lambda found: _settled(found, ids, refused, now)) or state
        self._known[name] = state
        return state, refused

    def _send(self, entry: Entry, run: Run) -> str | None:
        """Send one job. Returns what is wrong where it can't be sent."""
        message = message_for(entry.template, entry.schedule, run)
        told = {"schedule": entry.schedule.name, "due": run.scheduled_for.isoformat(), "job_id": run.job_id}
        try:
            delay_ms = run.delay_ms or None
            is_new = self._broker.enqueue_once(message, ONCE_WITHIN_SECONDS, delay_ms=delay_ms)
        except JobExists as error:
            logger.warning("The schedule's job is refused: %s", error, extra=told)
            return str(error)
        except CallboardError as error:
            if error.retryable:
                raise
            logger.error("The schedule's job can't be sent: %s", error, extra=told)
            return str(error)
        if is_new:
            logger.info("The schedule sent its job", extra={**told, "kind": run.kind})
        return None

    def _claim(self, name: str, state: ScheduleState) -> set[str]:
        if self._ledger:
            try:
                return self._ledger.claim(name, state.outbox, state)
            except HistoryUnavailable as error:
                logger.warning("The schedule fires by what Redis knows: %s", error, extra={"schedule": name})
        return set()

    def _note_sent(self, name: str, job_ids: set[str]) -> None:
        if self._ledger and job_ids:
            try:
                self._ledger.note_sent(name, job_ids)
            except HistoryUnavailable as error:
                logger.warning("A schedule's jobs are not noted as sent: %s", error, extra={"schedule": name})

    def _log_what_was_missed(self, name: str, before: ScheduleState, after: ScheduleState) -> None:
        if missed := after.missed - before.missed:
            made_up_for = after.caught_up - before.caught_up
            told = {"schedule": name, "made_up_for": made_up_for}
            logger.warning("The schedule missed %d due times", missed, extra=told)
        if skipped := after.overlapped - before.overlapped:
            logger.info("The schedule skips %d due times: its job has not ended", skipped, extra={"schedule": name})


def _counts_failures(entry: Entry) -> bool:
    return entry.schedule.pause_after_failures is not None


def _settled(
    found: ScheduleState | None, sent: set[str], refused: dict[str, str], now: datetime
) -> ScheduleState | None:
    """Take out of the outbox what was sent or refused. None where another scheduler has done so."""
    if found is None or found.is_deleted or not any(run.job_id in sent for run in found.outbox):
        return None
    followed = tuple(run for run in found.followed if run.job_id not in refused)
    error = next(iter(refused.values()), None)
    sent_count = found.sent - len(refused)
    return found.without(now, sent, followed=followed, sent=sent_count, last_error=error or found.last_error)
