import itertools
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import dramatiq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import BrokerUnavailable, DeclarationError, PayloadError, SettingsError
from service.job import job
from service.schedules import Cron, Every, Schedule
from service.schedules.runner import Scheduler, load_table

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


# The scheduler.


class Clock:
    def __init__(self, now=START):
        self.now = now

    def __call__(self):
        return self.now

    def tick(self, **by):
        self.now += timedelta(**by)


class FakeRedis:
    """Takes each message id once, as the real one does within a day, for all schedulers that share it."""

    def __init__(self):
        self.sent = {}
        self.refusing = False
        self.lock = threading.Lock()

    def send(self, message, *, once_within_seconds):
        assert once_within_seconds >= 3600
        if self.refusing:
            raise BrokerUnavailable("Redis is away", may_be_stored=False)
        with self.lock:
            is_new = message.message_id not in self.sent
            self.sent.setdefault(message.message_id, message)
            return is_new


@pytest.fixture
def server():
    return FakeRedis()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def scheduler(broker, monkeypatch, server, clock):
    @job(name="reports.daily", queue="reports")
    def report(*, kind: str = "short") -> None: ...

    broker.__dict__["namespace"] = "callboard"
    monkeypatch.setattr(broker, "send", server.send)
    monkeypatch.setattr(broker, "ping", lambda: None)

    def make(*schedules, now=clock):
        return Scheduler(broker, schedules, now)

    return make


def every(seconds, name="tick", actor="reports.daily", **payload):
    return Schedule(name, actor, Every(seconds), payload)


def test_each_due_time_sends_one_job_with_its_payload(scheduler, server, clock):
    runs = scheduler(every(60, kind="long"))
    assert runs.fire_what_is_due() > 0
    assert not server.sent
    for _ in range(600):
        clock.tick(seconds=1)
        runs.fire_what_is_due()
    assert len(server.sent) == 10
    assert {message.kwargs["kind"] for message in server.sent.values()} == {"long"}
    assert {message.actor_name for message in server.sent.values()} == {"reports.daily"}


def test_any_number_of_schedulers_send_each_due_time_once(scheduler, server, clock):
    runs = [scheduler(every(60), Schedule("cron", "reports.daily", Cron("* * * * *"))) for _ in range(5)]
    for _ in range(10):
        clock.tick(seconds=61)
        threads = [threading.Thread(target=each.fire_what_is_due) for each in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.sent) == 20


def test_a_scheduler_that_starts_later_does_not_repeat_what_another_sent(scheduler, server, clock):
    first = scheduler(every(60))
    clock.tick(seconds=60)
    first.fire_what_is_due()
    second = scheduler(every(60))
    second.fire_what_is_due()
    clock.tick(seconds=-90)  # a clock that is put right
    first.fire_what_is_due()
    second.fire_what_is_due()
    assert len(server.sent) == 1
    clock.tick(seconds=150)
    first.fire_what_is_due()
    second.fire_what_is_due()
    assert len(server.sent) == 2


def test_of_what_was_missed_the_newest_is_sent(scheduler, server, clock, caplog):
    missed, on_time = scheduler(every(60)), scheduler(every(60))
    clock.tick(minutes=10, seconds=5)
    missed.fire_what_is_due()
    (message_id,) = server.sent
    assert "The schedule missed 9 due times" in caplog.text
    clock.now = START + timedelta(minutes=10)
    on_time.fire_what_is_due()
    assert list(server.sent) == [message_id]


def test_what_came_due_while_no_scheduler_ran_is_not_made_up_for(scheduler, server, clock):
    clock.tick(minutes=10)
    scheduler(every(3600)).fire_what_is_due()
    assert not server.sent


def test_a_day_of_missed_minutes_is_passed_over_quickly(scheduler, server, clock):
    runs = scheduler(
        every(1),
        *(
            Schedule(zone, "reports.daily", Cron("* * * * *", zone))
            for zone in ("UTC", "Europe/Helsinki", "America/New_York")
        ),
    )
    clock.now = START + timedelta(hours=12)
    started = time.monotonic()
    runs.fire_what_is_due()
    assert time.monotonic() - started < 5
    assert len(server.sent) == 4


def test_a_send_that_failed_is_made_up_for_once(scheduler, server, clock):
    runs = scheduler(every(60, "one"), every(60, "two"))
    clock.tick(seconds=60)
    server.refusing = True
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            runs.fire_what_is_due()
    server.refusing = False
    clock.tick(seconds=5)
    runs.fire_what_is_due()
    runs.fire_what_is_due()
    assert len(server.sent) == 2


def test_the_wait_is_never_negative_nor_long(scheduler, clock):
    assert scheduler().fire_what_is_due() == 5.0
    assert scheduler(every(3600)).fire_what_is_due() == 5.0
    runs = scheduler(every(60))
    clock.tick(seconds=58)
    assert runs.fire_what_is_due() == pytest.approx(2.0)


def test_the_loop_outlives_an_outage_and_is_not_ready_in_it(scheduler, server, monkeypatch, broker, caplog):
    monkeypatch.setattr("service.schedules.runner.RETRY_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    up = threading.Event()

    def ping():
        if not up.is_set():
            raise BrokerUnavailable("Redis at nowhere can't be used", may_be_stored=False)

    monkeypatch.setattr(broker, "ping", ping)
    runs = scheduler(every(1), now=lambda: datetime.now(UTC))
    stop = threading.Event()
    thread = threading.Thread(target=runs.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: caplog.text.count("The scheduler can't send") > 2)
        assert not runs.is_ready
        up.set()
        eventually(lambda: runs.is_ready and server.sent)
    finally:
        up.set()
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def eventually(check, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_loop_passes_the_repeated_hour_without_spinning(scheduler, server, clock):
    clock.now = at("2017-10-29 01:45")
    runs = scheduler(Schedule("helsinki", "reports.daily", Cron("30 * * * *", "Europe/Helsinki")))
    started = time.monotonic()
    for _ in range(4 * 3600):
        clock.tick(seconds=1)
        runs.fire_what_is_due()
    assert len(server.sent) == 4
    assert time.monotonic() - started < 5


def test_a_schedule_of_an_unknown_actor_or_with_a_wrong_payload_stops_the_start(scheduler):
    with pytest.raises(DeclarationError, match=r"'tick' names an unknown actor: 'reports\.weekly'"):
        scheduler(every(60, actor="reports.weekly"))
    with pytest.raises(PayloadError, match="knd"):
        scheduler(every(60, knd="long"))


def test_a_plain_actor_may_be_scheduled(scheduler, broker, server, clock):
    dramatiq.actor(lambda **names: None, actor_name="plain", broker=broker)
    runs = scheduler(every(60, actor="plain", a=1))
    clock.tick(seconds=60)
    runs.fire_what_is_due()
    assert [message.kwargs for message in server.sent.values()] == [{"a": 1}]


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
