"""What is decided about due times: a pure function, so every story of a clock can be told."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.schedules import Cron, Every, Schedule
from service.schedules.decide import decide, first_state
from service.schedules.state import Paused, ScheduleState

START = datetime(2026, 5, 4, 12, 0, 15, tzinfo=UTC)


def minutely(**policy):
    return Schedule("each-minute", "x", Cron("* * * * *"), **policy)


def decided(schedule, state, now, *, is_running=False, is_followed=False):
    return decide(
        schedule,
        state,
        now,
        is_running=is_running,
        is_followed=is_followed,
        job_id_of=lambda schedule, due: due.isoformat(),
    )


def clocks(state):
    return [run.scheduled_for.strftime("%H:%M") for run in state.outbox]


# Case 04-O11: ten minutes without a scheduler.

BACK = datetime(2026, 5, 4, 12, 10, 45, tzinfo=UTC)
TEN = [f"12:{minute:02}" for minute in range(1, 11)]


@pytest.mark.parametrize(
    ("policy", "caught_up"),
    [
        ({"missed": "once"}, ["12:10"]),
        ({"missed": "all"}, TEN),
        ({"missed": "skip"}, []),
        ({"missed": "all", "window": 60}, ["12:10"]),
        ({"missed": "all", "most": 3}, ["12:08", "12:09", "12:10"]),
        ({"missed": "once", "window": 30}, []),
    ],
    ids=str,
)
def test_what_was_missed_is_made_up_for_as_the_policy_says_and_carries_its_nominal_time(policy, caught_up):
    schedule = minutely(**policy)
    state = decided(schedule, first_state(schedule, START), BACK)
    assert clocks(state) == caught_up
    assert {run.kind for run in state.outbox} <= {"missed"}
    assert (state.missed, state.caught_up, state.sent) == (10, len(caught_up), len(caught_up))
    # The next regular run keeps its minute, and is alone.
    after = decided(schedule, state.without(BACK, {run.job_id for run in state.outbox}), BACK)
    assert after.outbox == ()
    regular = decided(schedule, after, BACK.replace(minute=11, second=0))
    assert [(run.kind, run.scheduled_for.minute) for run in regular.outbox] == [("due", 11)]
    assert regular.missed == 10


def test_while_a_job_has_not_ended_overlap_skips():
    schedule = minutely(missed="all", overlap="skip")
    first = first_state(schedule, START)
    busy = decided(schedule, first, BACK, is_running=True)
    assert (busy.outbox, busy.overlapped, busy.missed) == ((), 10, 10)
    free = decided(schedule, first, BACK)
    # Of several at once the others would overlap the newest.
    assert (clocks(free), free.overlapped) == (["12:10"], 9)
    allowed = decided(minutely(missed="all"), first, BACK, is_running=True)
    assert clocks(allowed) == TEN


def test_one_that_is_on_time_stands_for_those_that_were_missed_before_it():
    schedule = minutely(missed="once")
    state = decided(schedule, first_state(schedule, START), BACK.replace(second=2))
    assert [(run.kind, run.scheduled_for.minute) for run in state.outbox] == [("due", 10)]
    assert (state.missed, state.caught_up) == (9, 0)


def test_a_paused_or_deleted_schedule_decides_nothing():
    schedule = minutely(missed="all")
    paused = first_state(schedule, START).changed(START, paused=Paused("ada", "", START))
    assert decided(schedule, paused, BACK) is paused
    deleted = first_state(schedule, START).changed(START, is_deleted=True)
    assert decided(schedule, deleted, BACK) is deleted


def test_another_plan_has_missed_nothing_and_loses_nothing():
    hourly = Schedule("s", "x", Cron("0 * * * *"), missed="all")
    state = first_state(hourly, START)
    often = Schedule("s", "x", Cron("* * * * *"), missed="all")
    changed = decided(often, state, BACK.replace(second=3))
    assert clocks(changed) == ["12:10"]
    assert changed.missed == 0
    # Two releases side by side: each due time of either is decided once.
    back = decided(hourly, changed, BACK.replace(hour=13, minute=0, second=1))
    assert [run.scheduled_for.strftime("%H:%M") for run in back.outbox] == ["12:10", "13:00"]


def test_a_month_of_seconds_is_decided_at_once():
    schedule = Schedule("s", "x", Every(1), missed="all", most=1000)
    state = decided(schedule, first_state(schedule, START), START + timedelta(days=30))
    assert [run.kind for run in state.outbox] == ["missed"] * 1000 + ["due"]
    assert state.outbox[-1].scheduled_for == START + timedelta(days=30)


def test_a_state_is_read_as_it_was_written_and_by_releases_that_know_less():
    schedule = minutely(missed="all", jitter=5)
    state = decided(schedule, first_state(schedule, START), BACK, is_followed=True)
    assert len(state.followed) == 10
    assert ScheduleState.from_json(state.to_json()) == state
    assert ScheduleState.from_json('{"decided_until":"2026-01-01T00:00:00Z","of_a_later_release":1}')


# Case 04-D46: a fake clock by the second over changes of the clocks.

CHANGES = [
    ("America/New_York", "2025-11-02"),
    ("America/New_York", "2026-03-08"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Europe/Berlin", "2025-10-26"),
    ("Europe/Berlin", "2026-03-29"),
    ("UTC", "2026-03-29"),
]


def fired(schedule, ticks):
    """What a scheduler fires that looks at these times, one after another."""
    ticks = iter(ticks)
    state = first_state(schedule, next(ticks))
    found = []
    due = schedule.after(state.decided_until)
    for now in ticks:
        if due is not None and now < due <= state.decided_until + timedelta(days=2):
            continue
        state = decided(schedule, state, now)
        found += [(now, run) for run in state.outbox]
        state = state.without(now, {run.job_id for run in state.outbox})
        due = schedule.after(max(now, state.decided_until))
    return found


def by_the_second(zone, day):
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - timedelta(hours=2)
    return [start + timedelta(seconds=second) for second in range(30 * 3600)]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("line", ["30 1 * * *", "30 2 * * *"])
def test_a_daily_job_fires_once_on_the_day_the_clocks_change(zone, day, line):
    found = fired(Schedule("s", "x", Cron(line, zone)), by_the_second(zone, day))
    local = [run.scheduled_for.astimezone(ZoneInfo(zone)) for _, run in found]
    assert sum(each.date().isoformat() == day for each in local) == 1
    assert all(now == run.scheduled_for for now, run in found)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(
    ("when", "seconds"),
    [("*/10 * * * *", 600), ("0 * * * *", 3600), (10, 10)],
    ids=["ten minutes", "an hour", "ten seconds"],
)
def test_what_comes_often_keeps_real_time_without_a_gap_or_a_burst(zone, day, when, seconds):
    schedule = Schedule("s", "x", Every(when) if isinstance(when, int) else Cron(when, zone))
    found = [run.scheduled_for for _, run in fired(schedule, by_the_second(zone, day))]
    gaps = {later - sooner for sooner, later in itertools.pairwise(found)}
    if zone == "Australia/Lord_Howe" and seconds == 3600:
        # Half an hour is skipped or repeated there, and the full hour of the wall moves by it.
        assert gaps <= {timedelta(minutes=30), timedelta(hours=1), timedelta(minutes=90)}
        assert timedelta(hours=1) in gaps
    else:
        assert gaps == {timedelta(seconds=seconds)}


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(
        st.sampled_from([1.0, 1.0, 1.0, 5.0, 59.0, 61.0, -1.0, -90.0, -3600.0, 90.0, 3600.0, 86_400.0]), max_size=60
    ),
    line=st.sampled_from(["* * * * *", "*/10 * * * *", "30 1 * * *"]),
    missed=st.sampled_from(["skip", "once", "all"]),
    zone=st.sampled_from(["America/New_York", "Australia/Lord_Howe"]),
)
def test_whatever_the_clock_does_nothing_fires_twice_or_early_and_what_fires_rises(steps, line, missed, zone):
    schedule = Schedule("s", "x", Cron(line, zone), missed=missed, most=5)
    start = datetime(2025, 11, 2, 4, 30, tzinfo=UTC)
    state, now, seen = first_state(schedule, start), start, []
    for step in steps:
        now += timedelta(seconds=step)
        state = decided(schedule, state, now)
        assert len(state.outbox) <= 6
        assert all(run.scheduled_for <= now for run in state.outbox)
        seen += [run.scheduled_for for run in state.outbox]
        state = state.without(now, {run.job_id for run in state.outbox})
    assert seen == sorted(set(seen))


def test_a_clock_put_back_by_90_seconds_fires_nothing_twice_and_the_next_minute_in_time():
    ticks = [START + timedelta(seconds=second) for second in range(300)]
    ticks += [ticks[-1] - timedelta(seconds=90) + timedelta(seconds=second) for second in range(300)]
    found = [run.scheduled_for for _, run in fired(minutely(missed="all"), ticks)]
    assert [each.minute for each in found] == list(range(1, 9))
