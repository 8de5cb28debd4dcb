"""Decides which due times get a job: a pure function of a schedule, what is known of it, and the time."""

from collections.abc import Callable
from datetime import datetime, timedelta

from service.schedules.due import count_between, newest_between
from service.schedules.schedule import Schedule
from service.schedules.state import Run, ScheduleState

#: The newest due time counts as met when it is not older.
ON_TIME = timedelta(seconds=10)
MOST_FOLLOWED = 100

JobIds = Callable[[Schedule, datetime], str]


def first_state(schedule: Schedule, now: datetime) -> ScheduleState:
    """Return what is known of a schedule that nobody has seen before: nothing that was due before now was missed."""
    return ScheduleState(now, fingerprint=schedule.fingerprint, version=schedule.version).changed(now)


def decide(
    schedule: Schedule,
    state: ScheduleState,
    now: datetime,
    *,
    is_running: bool,
    is_followed: bool,
    job_id_of: JobIds,
) -> ScheduleState:
    """Return the state after all due times until now, the same object where there is none.

    is_running: whether the schedule's last job has not ended. is_followed: whether somebody waits for the outcomes.
    """
    if state.paused or state.is_deleted:
        return state
    since = state.decided_until
    if schedule.fingerprint != state.fingerprint:
        # Another plan: what it would have had before was not missed. Less than ON_TIME ago it is due all the same, so
        # that nothing is lost while two releases with different plans run side by side.
        since = max(since, now - ON_TIME)
    newest = newest_between(schedule, since, now, 1 + (schedule.most if schedule.missed == "all" else 1))
    if not newest:
        return state
    on_time = newest[-1:] if now - newest[-1] <= ON_TIME else []
    late = newest[: len(newest) - len(on_time)]
    missed = count_between(schedule, since, now) - len(on_time)
    made_up_for = _made_up_for(schedule, late, now, covered=bool(on_time))
    runs = [Run(job_id_of(schedule, due), due, "missed") for due in made_up_for]
    runs += [Run(job_id_of(schedule, due), due, "due", schedule.delay_ms(due)) for due in on_time]
    overlapped = 0
    if schedule.overlap == "skip":
        # Of several at once the newest: the others would overlap it.
        kept = [] if is_running else runs[-1:]
        overlapped = len(runs) - len(kept)
        runs = kept
    followed = (*state.followed, *runs)[-MOST_FOLLOWED:] if is_followed else ()
    return state.changed(
        now,
        decided_until=newest[-1],
        fingerprint=schedule.fingerprint,
        version=schedule.version,
        sent=state.sent + len(runs),
        missed=state.missed + missed,
        caught_up=state.caught_up + sum(run.kind == "missed" for run in runs),
        overlapped=state.overlapped + overlapped,
        last_run=runs[-1] if runs else state.last_run,
        last_due=runs[-1] if runs else state.last_due,
        outbox=(*state.outbox, *runs),
        followed=followed,
    )


def _made_up_for(schedule: Schedule, late: list[datetime], now: datetime, *, covered: bool) -> list[datetime]:
    """Return the late ones that get a job. `covered`: one that is on time goes out anyway, and is as good as one."""
    if schedule.window_seconds is not None:
        oldest = now - timedelta(seconds=schedule.window_seconds)
        late = [due for due in late if due >= oldest]
    if schedule.missed == "all":
        return late[-schedule.most :]
    if schedule.missed == "once" and not covered:
        return late[-1:]
    return []
