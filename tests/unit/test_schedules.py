import itertools
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import DeclarationError, SettingsError
from service.schedules import Cron, Every, Schedule
from service.schedules.code_table import load_table

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday


def due_times(when, start, count):
    found = []
    for _ in range(count):
        start = when.after(start)
        found.append(start)
    return found


def days(when, count=3, start=START - timedelta(seconds=1)):
    return [due.strftime("%a") for due in due_times(when, start, count)]


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


# Weekdays are crontab's.


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("4", ["Thu"] * 3),
        ("0", ["Sun"] * 3),
        ("7", ["Sun"] * 3),
        ("sun", ["Sun"] * 3),
        ("SUN", ["Sun"] * 3),
        ("1,7", ["Mon", "Sun", "Mon"]),
        ("5-7", ["Fri", "Sat", "Sun"]),
        ("fri-sun", ["Fri", "Sat", "Sun"]),
        ("0-2", ["Mon", "Tue", "Sun"]),
        ("sun-tue", ["Mon", "Tue", "Sun"]),
        ("mon-fri/2", ["Mon", "Wed", "Fri"]),
        ("*/2", ["Tue", "Thu", "Sat"]),
        ("0-7", ["Mon", "Tue", "Wed"]),
        ("1-5/2,6", ["Mon", "Wed", "Fri"]),
        ("*", ["Mon", "Tue", "Wed"]),
    ],
)
def test_weekdays_mean_what_they_mean_in_a_crontab(field, expected):
    assert days(Cron(f"0 2 * * {field}")) == expected


def test_every_field_is_read():
    found = due_times(Cron("*/20 6-8/2 1,15 mar-apr *"), START, 8)
    assert [due.strftime("%m-%d %H:%M") for due in found] == [
        "03-01 06:00",
        "03-01 06:20",
        "03-01 06:40",
        "03-01 08:00",
        "03-01 08:20",
        "03-01 08:40",
        "03-15 06:00",
        "03-15 06:20",
    ]
    assert Cron("0 0 29 2 *").after(at("2024-03-01")) == at("2028-02-29")
    assert due_times(Cron("0 0 */2 * 1"), START, 2) == [at("2024-01-15"), at("2024-01-29")]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "@daily",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "*/70 * * * *",
        "* * * * */0",
        "5-1 * * * *",
        "* * * * 5-1",
        "* * * * fri-mon",
        "-1 * * * *",
        "+5 * * * *",
        "1.5 * * * *",
        "1,,2 * * * *",
        "1- * * * *",
        "a * * * *",
        "* * ? * *",
        "* * L * *",
        "* * last * *",
        "* * * * monday",
        "* * * * 1#2",
        "* * * foo *",
        "0 0 1 * 1",
        "0 0 1,*/2 * 1",
        "\u0663 * * * *",
        "* * * * \u0663",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
    ],
)
def test_what_is_not_supported_is_refused_at_once_and_never_read_in_another_way(expression):
    started = time.monotonic()
    with pytest.raises(DeclarationError) as refused:
        Cron(expression)
    assert repr(expression) in str(refused.value)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("zone", ["", "Nowhere/Land", "Europe", "../etc/passwd", "/etc/passwd", "Europe/Helsinki\x00"])
def test_an_unknown_time_zone_is_refused(zone):
    with pytest.raises(DeclarationError, match="Cron"):
        Cron("0 0 * * *", zone)


# Where clocks change.

CHANGES = [
    ("Europe/Helsinki", "2017-10-29"),
    ("Europe/Helsinki", "2018-03-25"),
    ("America/New_York", "2025-11-02"),
    ("America/New_York", "2026-03-08"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Europe/London", "2024-10-27"),
    ("Europe/Berlin", "2024-03-31"),
    ("America/Havana", "2024-03-10"),
    ("UTC", "2024-03-31"),
]
AROUND = [(zone, at(day, zone) - timedelta(days=1, hours=6)) for zone, day in CHANGES]
over_the_changes = pytest.mark.parametrize(("zone", "start"), AROUND, ids=[f"{zone}-{day}" for zone, day in CHANGES])


def on_the_wall(due, zone):
    return due.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


@over_the_changes
@pytest.mark.parametrize("expression", ["* * * * *", "*/10 * * * *", "0 * * * *", "30 * * * *", "*/7 */2 * * *"])
def test_due_times_strictly_increase_and_come_quickly(zone, start, expression):
    started = time.monotonic()
    found = due_times(Cron(expression, zone), start, 200)
    assert all(sooner < later for sooner, later in zip([start, *found], found, strict=False))
    assert all(due.tzinfo is UTC for due in found)
    assert time.monotonic() - started < 5


@over_the_changes
@pytest.mark.parametrize("minutes", [1, 10, 30])
def test_a_minute_schedule_keeps_real_time_without_a_gap_or_a_burst(zone, start, minutes):
    start += timedelta(hours=28 - min(minutes, 6))
    found = due_times(Cron(f"*/{minutes} * * * *", zone), start, 12 * 60 // minutes)
    assert {later - sooner for sooner, later in itertools.pairwise(found)} == {timedelta(minutes=minutes)}


@over_the_changes
@pytest.mark.parametrize(
    "clock", ["00:00", "00:30", "01:30", "01:45", "02:00", "02:15", "02:30", "03:00", "03:30", "12:00"]
)
def test_a_daily_job_runs_once_a_day_at_its_time_or_as_much_later_as_the_clock_was_put_forward(zone, start, clock):
    hour, minute = clock.split(":")
    found = [on_the_wall(due, zone) for due in due_times(Cron(f"{int(minute)} {int(hour)} * * *", zone), start, 5)]
    assert len({due.date() for due in found}) == 5
    assert found[-1] - found[0] <= timedelta(days=4, hours=1)
    late = [due for due in found if due.strftime("%H:%M") != clock]
    assert len(late) <= 1
    for due in late:
        asked = due.replace(hour=int(hour), minute=int(minute))
        real = asked.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        assert on_the_wall(real, zone) == due != asked  # the clock never showed what was asked


@pytest.mark.parametrize("expression", ["17 * * * *", "*/15 * * * *", "0 */3 * * *", "20 4 * * 1-5", "0 0 1 * *"])
@settings(deadline=None, max_examples=30)
@given(moment=st.datetimes(datetime(2023, 1, 1), datetime(2027, 1, 1)), zone=st.sampled_from(CHANGES))
def test_what_is_due_next_is_later_matches_the_line_and_skips_nothing(expression, moment, zone):
    cron, moment = Cron(expression, zone[0]), moment.replace(tzinfo=UTC)
    due = cron.after(moment)
    assert due > moment
    # Asked again a moment before it is due, or anywhere between, the answer is the same.
    assert cron.after(due - timedelta(microseconds=1)) == due
    assert cron.after(moment + (due - moment) / 2) == due


def test_the_hour_that_autumn_repeats_does_not_catch_the_scheduler():
    cron = Cron("30 * * * *", "Europe/Helsinki")
    assert cron.after(at("2017-10-29 00:45")) == at("2017-10-29 01:30")
    assert cron.after(at("2017-10-29 01:45")) == at("2017-10-29 02:30")
    assert due_times(cron, at("2017-10-29 01:45"), 10) == [at(f"2017-10-29 {hour:02}:30") for hour in range(2, 12)]


def test_a_schedule_of_fixed_hours_runs_in_the_first_pass_alone():
    assert due_times(Cron("30 1 * * *", "America/New_York"), at("2025-11-01 12:00"), 2) == [
        at("2025-11-02 05:30"),
        at("2025-11-03 06:30"),
    ]
    # Half an hour is repeated there, not a whole one.
    assert due_times(Cron("45 1 * * *", "Australia/Lord_Howe"), at("2026-04-04 00:00"), 2) == [
        at("2026-04-04 14:45"),
        at("2026-04-05 15:15"),
    ]


def test_the_day_after_the_clock_is_put_forward_is_not_skipped():
    assert due_times(Cron("0 0 * * *", "America/New_York"), at("2024-03-10 00:00"), 3) == [
        at("2024-03-10 05:00"),
        at("2024-03-11 04:00"),
        at("2024-03-12 04:00"),
    ]


# Intervals.


@given(st.integers(1, 10**7), st.integers(0, 4 * 10**9))
def test_an_interval_is_counted_from_one_moment_for_all(seconds, moment):
    start = datetime.fromtimestamp(moment, UTC)
    due = Every(seconds).after(start)
    assert start < due <= start + timedelta(seconds=seconds)
    assert due.timestamp() % seconds == 0
    assert Every(seconds).after(due) - due == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [0, -1, 10**12])
def test_an_interval_that_can_not_be_is_refused(seconds):
    with pytest.raises(DeclarationError, match="Every"):
        Every(seconds)


# The table.


def table(monkeypatch, tmp_path, text):
    (tmp_path / "my_schedules.py").write_text(f"from service.schedules import Cron, Every, Schedule\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_schedules", raising=False)
    return load_table("my_schedules:SCHEDULES")


def test_a_teams_own_table_is_found(monkeypatch, tmp_path):
    (schedule,) = table(monkeypatch, tmp_path, 'SCHEDULES = [Schedule("a", "x", Every(1))]')
    assert schedule == Schedule("a", "x", Every(1))
    assert load_table("service.schedules.table:SCHEDULES") == ()


@pytest.mark.parametrize(
    "text",
    [
        'SCHEDULES = [Schedule("a", "x", Every(1)), Schedule("a", "y", Every(2))]',
        "SCHEDULES = 5",
        "SCHEDULES = ['nightly']",
        "import no_such_module",
        "OTHER = ()",
        "SCHEDULES = ''",
        "SCHEDULES = {}",
        'SCHEDULES = (Schedule(name, "x", Every(1)) for name in "ab")',
    ],
)
def test_a_table_that_can_not_be_read_is_told_with_its_variable(monkeypatch, tmp_path, text):
    with pytest.raises(SettingsError, match=r"^CALLBOARD_SCHEDULES='my_schedules:SCHEDULES' is wrong: "):
        table(monkeypatch, tmp_path, text)


@pytest.mark.parametrize("name", ["", ":", "nowhere:SCHEDULES", "service.schedules.table", ".relative:SCHEDULES"])
def test_a_name_that_leads_nowhere_is_told_with_an_example(name):
    with pytest.raises(SettingsError, match="for example: CALLBOARD_SCHEDULES="):
        load_table(name)
