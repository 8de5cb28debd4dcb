"""Intervals and single dates: one rule for each unit, over every change of the clocks."""

import itertools
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import DeclarationError
from service.schedules import Cron, Every, Once, Schedule
from service.schedules.due import MOST_COUNTED, count_between, newest_between, next_times

ZONES = ["UTC", "Europe/Berlin", "Europe/Brussels", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]


def schedule(when, **more):
    return Schedule("s", "x", when, **more)


def walls(when, zone, count, after="2000-01-01"):
    found = next_times(schedule(when), datetime.fromisoformat(after).replace(tzinfo=UTC), count)
    return [due.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for due in found]


def test_days_keep_the_clock_on_the_wall_and_hours_the_time_that_elapses():
    start = datetime(2019, 3, 26, 16)
    days = walls(Every(days=7, timezone="Europe/Brussels", start=start), "Europe/Brussels", 3)
    hours = walls(Every(hours=168, timezone="Europe/Brussels", start=start), "Europe/Brussels", 3)
    assert days == ["2019-03-26T16:00+01:00", "2019-04-02T16:00+02:00", "2019-04-09T16:00+02:00"]
    assert hours == ["2019-03-26T16:00+01:00", "2019-04-02T17:00+02:00", "2019-04-09T17:00+02:00"]


def test_a_day_whose_hour_the_clocks_skip_has_its_job_later_and_one_that_repeats_it_has_one_job():
    spring = Every(days=1, timezone="America/New_York", start=datetime(2026, 3, 7, 2, 30))
    assert walls(spring, "America/New_York", 3) == [
        "2026-03-07T02:30-05:00",
        "2026-03-08T03:30-04:00",
        "2026-03-09T02:30-04:00",
    ]
    autumn = Every(days=1, timezone="Australia/Lord_Howe", start=datetime(2026, 4, 4, 1, 45))
    assert walls(autumn, "Australia/Lord_Howe", 3) == [
        "2026-04-04T01:45+11:00",
        "2026-04-05T01:45+11:00",
        "2026-04-06T01:45+10:30",
    ]


def test_weeks_begin_on_monday_where_no_start_is_given():
    [first] = next_times(schedule(Every(weeks=1, timezone="Europe/Berlin")), datetime(2024, 6, 5, tzinfo=UTC), 1)
    assert first.astimezone(ZoneInfo("Europe/Berlin")) == datetime(2024, 6, 10, tzinfo=ZoneInfo("Europe/Berlin"))


@settings(deadline=None, max_examples=150)
@given(
    zone=st.sampled_from(ZONES),
    days=st.integers(1, 40),
    start=st.datetimes(datetime(2005, 1, 1), datetime(2026, 1, 1)),
    later=st.timedeltas(timedelta(), timedelta(days=3000)),
)
def test_an_interval_of_days_has_one_due_time_a_step_and_keeps_its_clock(zone, days, start, later):
    every = Every(days=days, timezone=zone, start=start)
    moment = start.replace(tzinfo=UTC) + later
    found = next_times(schedule(every), moment, 5)
    assert all(sooner < next_one for sooner, next_one in zip([moment, *found], found, strict=False))
    for due in found:
        wall = due.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        steps, rest = divmod(wall - start, timedelta(days=days))
        # Off by what the clocks skip, and where a country has left a day out, by that.
        assert rest in (timedelta(), timedelta(minutes=30), timedelta(hours=1)) or zone == "Pacific/Apia"
        assert steps >= 0
    gaps = [next_one - sooner for sooner, next_one in itertools.pairwise(found)]
    assert all(abs(gap - timedelta(days=days)) <= timedelta(days=1) for gap in gaps)
    assert every.after(found[0] - timedelta(microseconds=1)) == found[0]


@settings(deadline=None)
@given(
    seconds=st.integers(1, 10**6),
    start=st.none() | st.datetimes(datetime(2005, 1, 1), datetime(2026, 1, 1), timezones=st.just(UTC)),
    moment=st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)
def test_what_is_shorter_than_a_day_is_exact(seconds, start, moment):
    every = Every(seconds, start=start)
    first, second = next_times(schedule(every), moment, 2)
    assert second - first == timedelta(seconds=seconds)
    if start is not None and moment < start:
        assert first == start
    else:
        assert moment < first <= moment + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "units",
    [
        {},
        {"seconds": 0},
        {"minutes": -1},
        {"hours": 1.5},
        {"days": True},
        {"days": 1, "hours": 1},
        {"weeks": 1000},
        {"weeks": 10**30},
        {"seconds": 10**400},
        {"days": 1, "timezone": "Nowhere"},
    ],
    ids=str,
)
def test_an_interval_without_one_meaning_is_refused(units):
    with pytest.raises(DeclarationError, match=r"Every\("):
        Every(**units)


def test_one_date_is_due_once():
    once = Once(datetime(2026, 7, 1, 8), "Europe/Berlin")
    assert once.after(datetime(2026, 7, 1, 5, 59, tzinfo=UTC)) == datetime(2026, 7, 1, 6, tzinfo=UTC)
    assert once.after(datetime(2026, 7, 1, 6, tzinfo=UTC)) is None


def test_bounds_hold_for_every_kind():
    berlin = ZoneInfo("Europe/Berlin")
    start, end = datetime(2026, 3, 1, tzinfo=berlin), datetime(2026, 3, 3, tzinfo=berlin)
    bounded = schedule(Cron("0 0 * * *", "Europe/Berlin"), start=start, end=end)
    found = next_times(bounded, datetime(2020, 1, 1, tzinfo=UTC), 10)
    assert [due.astimezone(berlin).date() for due in found] == [date(2026, 3, day) for day in (1, 2, 3)]
    assert schedule(Once(start), end=start - timedelta(seconds=1)).after(datetime(2020, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"missed": "never"}, "missed='never' must be one of skip, once, all"),
        ({"overlap": "queue"}, "overlap='queue'"),
        ({"most": 0}, "most=0"),
        ({"most": 10**6}, "most=1000000"),
        ({"window": -1}, "window=-1"),
        ({"window": "1 hour"}, "window='1 hour'"),
        ({"jitter": "2d"}, "jitter='2d'"),
        ({"pause_after_failures": 0}, "pause_after_failures=0"),
        ({"start": datetime(2026, 1, 1)}, "start must say its time zone"),
        (
            {"start": datetime(2026, 1, 2, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)},
            "end is before start",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(DeclarationError) as refused:
        schedule(Every(1), **options)
    assert named in str(refused.value)


@settings(deadline=None, max_examples=100)
@given(
    seconds=st.sampled_from([1, 7, 60, 3600, 86400]),
    span=st.integers(0, 200_000),
    most=st.integers(1, 50),
)
def test_the_newest_and_the_number_of_due_times_are_those_of_the_plain_way(seconds, span, most):
    until = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    after = until - timedelta(seconds=span)
    one = schedule(Every(seconds))
    plain = [due for due in next_times(one, after, span // seconds + 2) if due <= until]
    assert newest_between(one, after, until, most) == plain[-most:]
    assert count_between(one, after, until) == min(len(plain), MOST_COUNTED)


def test_jitter_is_the_same_for_all_and_spread_over_its_range():
    one = schedule(Every(60), jitter="30s")
    dues = next_times(one, datetime(2026, 1, 1, tzinfo=UTC), 500)
    delays = [one.delay_ms(due) for due in dues]
    assert delays == [schedule(Every(60), jitter=30).delay_ms(due) for due in dues]
    assert 0 <= min(delays) < 3000
    assert 27_000 < max(delays) <= 30_000
