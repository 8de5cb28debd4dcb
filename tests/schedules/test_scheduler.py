"""Schedulers that share a Redis: each due time has one job, whatever happens to them and to Redis."""

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
import pytest

from service.broker import RedisBroker
from service.broker.job_acts import JobActs
from service.broker.keys import Keys
from service.broker.messages import decode_message
from service.errors import BrokerUnavailable, DeclarationError, PayloadError, QueueFull
from service.job import job
from service.middleware.unique import Unique
from service.schedules import Cron, Every, Schedule
from service.schedules.book import ScheduleBook
from service.schedules.firing import Firing
from service.schedules.ledger import Ledger
from service.schedules.runner import Scheduler
from service.schedules.state import Run, ScheduleState
from service.schedules.states import States
from tests.brokers import broker_at
from tests.schedules.conftest import START, Clock, every, nominal, sent
from tests.servers import RedisServer, eventually

Make = Callable[..., Scheduler]


def declare_plain(broker: RedisBroker, name: str) -> None:
    @dramatiq.actor(actor_name=name, queue_name="reports", broker=broker)
    def plain(**names: Any) -> None: ...


def test_each_due_time_sends_one_job_with_its_payload_and_nominal_time(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    runs = make(every(60, payload={"kind": "long"}, tenant="acme"))
    assert 0 < runs.fire_what_is_due() <= 1
    assert not sent(actors)
    for _ in range(600):
        clock.tick(seconds=1)
        runs.fire_what_is_due()
    assert nominal(actors) == [f"12:{minute:02}:00" for minute in range(1, 11)]
    stored = actors.client.hvals(Keys(actors.namespace, "reports").messages)
    for message in (decode_message(each.partition(b"\n")[2]) for each in stored):
        assert message.kwargs == {"kind": "long"}
        assert message.options["tenant"] == "acme"
        assert message.options["schedule"] == "tick"


def test_any_number_of_schedulers_whose_clocks_differ_send_each_due_time_once(actors: RedisBroker, make: Make) -> None:
    schedules = (every(60), Schedule("cron", "reports.daily", Cron("* * * * *"), missed="all"))
    clocks = [Clock(START + timedelta(seconds=offset)) for offset in (0, 0.3, -0.7, 40, -40)]
    runs = [make(*schedules, clock=clock) for clock in clocks]
    for _ in range(20):
        for clock in clocks:
            clock.tick(seconds=31)
        threads = [threading.Thread(target=each.fire_what_is_due) for each in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sorted(sent(actors).values())
    assert len(found) == len(set(found))
    minutes = [at for name, at in found if name == "cron"]
    assert len(minutes) in (10, 11)  # the fastest clock has seen one more
    state = States(actors).read("cron").state
    assert state
    assert state.sent == len(minutes)
    assert state.outbox == ()


def test_what_one_has_sent_another_does_not_send_after_a_jump_of_the_clock(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    first = make(every(60))
    first.fire_what_is_due()
    clock.tick(seconds=60)
    first.fire_what_is_due()
    second = make(every(60))
    second.fire_what_is_due()
    clock.tick(seconds=-90)
    first.fire_what_is_due()
    second.fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]
    clock.tick(seconds=150)
    first.fire_what_is_due()
    second.fire_what_is_due()
    assert nominal(actors) == ["12:01:00", "12:02:00"]


@pytest.mark.parametrize(("missed", "expected"), [("once", 1), ("all", 10), ("skip", 0)])
def test_what_came_due_while_no_scheduler_ran_is_known_to_the_next_one(
    actors: RedisBroker, make: Make, clock: Clock, missed: str, expected: int
) -> None:
    make(every(60, missed=missed)).fire_what_is_due()
    clock.tick(minutes=10, seconds=30)
    make(every(60, missed=missed)).fire_what_is_due()
    assert nominal(actors) == [f"12:{minute:02}:00" for minute in range(11 - expected, 11)]
    make(every(60, missed=missed)).fire_what_is_due()
    assert len(sent(actors)) == expected
    state = States(actors).read("tick").state
    assert state
    assert state.missed == 10


def test_of_a_schedule_that_is_seen_first_nothing_was_missed(actors: RedisBroker, make: Make) -> None:
    make(every(3600, missed="all")).fire_what_is_due()
    assert not sent(actors)


def test_a_decision_that_was_not_sent_is_sent_by_another_scheduler(
    actors: RedisBroker, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(every(60)).fire_what_is_due()
    clock.tick(seconds=60)
    with monkeypatch.context() as patch:

        def dies(*_arguments: Any, **_options: Any) -> bool:
            raise SystemExit

        patch.setattr(actors, "enqueue_once", dies)
        with pytest.raises(SystemExit):
            make(every(60)).fire_what_is_due()
    assert not sent(actors)
    make(every(60)).fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]


def test_a_send_that_failed_is_made_up_for_once(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with broker_at(own_redis.url, monkeypatch) as broker:
        monkeypatch.setattr("service.job.broker", broker)
        declare_plain(broker, "reports.daily")
        runs = Scheduler(broker, [every(60, "one"), every(60, "two")], firing=Firing(broker), clock=clock)
        runs.fire_what_is_due()
        clock.tick(seconds=60)
        own_redis.kill()
        for _ in range(3):
            with pytest.raises(BrokerUnavailable):
                runs.fire_what_is_due()
        own_redis.start()
        clock.tick(seconds=5)
        runs.fire_what_is_due()
        runs.fire_what_is_due()
        assert sorted(name for name, _ in sent(broker).values()) == ["one", "two"]


def test_an_emptied_redis_makes_no_due_time_fire_again(
    actors: RedisBroker, make: Make, clock: Clock, ledger: Ledger
) -> None:
    """One scheduler stood still meanwhile, as after SIGSTOP, and one knows nothing: the database does."""
    frozen, awake = (make(every(60, missed="all"), ledger=ledger) for _ in range(2))
    frozen.fire_what_is_due()
    awake.fire_what_is_due()
    clock.tick(minutes=1)
    awake.fire_what_is_due()
    clock.tick(minutes=1)
    awake.fire_what_is_due()
    assert nominal(actors) == ["12:01:00", "12:02:00"]
    for key in actors.client.scan_iter(f"{{{actors.namespace}:*"):
        actors.client.delete(key)
    frozen.fire_what_is_due()
    make(every(60, missed="all"), ledger=ledger).fire_what_is_due()
    assert nominal(actors) == []
    clock.tick(minutes=1)
    for each in (frozen, awake):
        each.fire_what_is_due()
    assert nominal(actors) == ["12:03:00"]


def test_a_job_that_the_database_knows_as_sent_is_not_sent_again(
    actors: RedisBroker, make: Make, clock: Clock, ledger: Ledger
) -> None:
    """The state alone was lost and a copy of it is old: the row of the due time is the last guard."""
    runs = make(every(60), ledger=ledger)
    runs.fire_what_is_due()
    clock.tick(minutes=1)
    old = actors.client.get(f"{{{actors.namespace}:schedules}}:state:tick")
    runs.fire_what_is_due()
    assert len(sent(actors)) == 1
    for key in actors.client.scan_iter(f"{{{actors.namespace}:*"):
        actors.client.delete(key)
    actors.client.set(f"{{{actors.namespace}:schedules}}:state:tick", old)
    make(every(60), ledger=ledger).fire_what_is_due()
    assert sent(actors) == {}
    assert [run["kind"] for run in ledger.runs_of("tick", 10)] == ["missed"]


def test_overlap_skips_while_the_job_before_has_not_ended(actors: RedisBroker, make: Make, clock: Clock) -> None:
    runs = make(every(60, overlap="skip"))
    runs.fire_what_is_due()
    for _ in range(3):
        clock.tick(minutes=1)
        runs.fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]
    actors.flush("reports")  # it has ended
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert nominal(actors) == ["12:04:00"]
    state = States(actors).read("tick").state
    assert state
    assert (state.sent, state.overlapped) == (2, 2)


def test_overlap_skips_while_a_job_before_one_that_was_run_by_hand_has_not_ended(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    schedule = every(60, overlap="skip")
    runs = make(schedule)
    runs.fire_what_is_due()
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]
    by_hand = Run(str(uuid.uuid4()), clock.now, "by-hand")
    assert Firing(actors).run_now(runs.entries["tick"], by_hand, clock.now) is None
    JobActs(actors).cancel(by_hand.job_id, by="ada")
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]


def test_a_full_queue_holds_up_no_other_queue_and_what_it_missed_is_missed(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    declare_plain(actors, "t.plain")
    actors.get_actor("t.plain").queue_name = "default"
    runs = make(every(60, missed="skip"), Schedule("other", "t.plain", Every(60)))
    runs.fire_what_is_due()
    clock.tick(seconds=-15)
    full = Keys(actors.namespace, "reports").full
    actors.client.set(full, "1")
    for _ in range(30):
        clock.tick(minutes=1)
        with pytest.raises(QueueFull):
            runs.fire_what_is_due()
    assert len(sent(actors, "default")) == 30
    assert not sent(actors)
    actors.client.delete(full)
    runs.fire_what_is_due()
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert nominal(actors) == ["12:01:00", "12:30:00", "12:31:00"], "the one that was decided, and those on time"
    state = States(actors).read("tick").state
    assert state
    assert (state.sent, state.missed, state.outbox) == (3, 28, ())


def test_a_pause_holds_for_a_schedule_with_the_name_of_a_deleted_one(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    gone = ScheduleState(clock.now, version=7, is_deleted=True).changed(clock.now)
    States(actors).change("tick", lambda _: gone)
    schedule = every(60)
    ScheduleBook(actors, [schedule], None).pause("tick", by="ada", why="")
    runs = make(schedule)
    runs.fire_what_is_due()
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert not sent(actors)


def test_what_comes_due_goes_before_what_was_never_looked_at(
    actors: RedisBroker, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.schedules.runner.UNSEEN_SECONDS", -1.0)
    runs = make(*(every(60, name=f"tick-{number}") for number in range(5)))
    assert runs.fire_what_is_due() == 0
    for seconds in (45, 0):
        clock.tick(seconds=seconds)
        assert runs.fire_what_is_due() == 0
    assert [name for name, _ in sent(actors).values()] == ["tick-0"]
    while runs.fire_what_is_due() == 0:
        pass
    clock.tick(minutes=1)
    runs.fire_what_is_due()
    assert {name for name, _ in sent(actors).values()} == {f"tick-{number}" for number in range(5)}


def test_jitter_delays_the_job_and_not_the_due_time(actors: RedisBroker, make: Make, clock: Clock) -> None:
    schedule = every(60, jitter="20s")
    runs = make(schedule)
    runs.fire_what_is_due()
    clock.tick(seconds=45)
    runs.fire_what_is_due()
    [job_id] = sent(actors)
    due = clock.now
    delayed = actors.client.zscore(Keys(actors.namespace, "reports").delayed, job_id)
    seconds, _ = actors.client.time()
    assert schedule.delay_ms(due) > 0
    assert abs(delayed / 1000 - seconds - schedule.delay_ms(due) / 1000) < 3


def test_a_unique_job_that_is_there_already_is_no_error_of_the_schedule(
    actors: RedisBroker, make: Make, clock: Clock
) -> None:
    @job(name="reports.unique", queue="reports", unique=Unique(lambda _: "one"))
    def unique() -> None: ...

    runs = make(Schedule("u", "reports.unique", Every(60)))
    runs.fire_what_is_due()
    for _ in range(2):
        clock.tick(minutes=1)
        runs.fire_what_is_due()
    assert nominal(actors) == ["12:01:00"]
    state = States(actors).read("u").state
    assert state
    assert (state.sent, state.outbox) == (1, ())
    assert "has the unique key" in (state.last_error or "")


def test_a_day_of_missed_minutes_is_passed_over_quickly(actors: RedisBroker, make: Make, clock: Clock) -> None:
    zones = ("UTC", "Europe/Helsinki", "America/New_York")
    runs = make(every(1), *(Schedule(zone, "reports.daily", Cron("* * * * *", zone)) for zone in zones))
    runs.fire_what_is_due()
    clock.tick(hours=12)
    runs.fire_what_is_due()
    assert len(sent(actors)) == 4


def test_the_loop_passes_the_repeated_hour_without_spinning(actors: RedisBroker, make: Make, clock: Clock) -> None:
    clock.now = datetime(2017, 10, 29, 1, 45, tzinfo=UTC)
    runs = make(Schedule("helsinki", "reports.daily", Cron("30 * * * *", "Europe/Helsinki")))
    for _ in range(4 * 360):
        assert runs.fire_what_is_due() > 0
        clock.tick(seconds=10)
    assert nominal(actors) == ["02:30:00", "03:30:00", "04:30:00", "05:30:00"]


def test_a_schedule_of_an_unknown_actor_or_with_a_wrong_payload_stops_the_start(make: Make) -> None:
    with pytest.raises(DeclarationError, match=r"'tick' names an unknown actor: 'reports\.weekly'"):
        make(Schedule("tick", "reports.weekly", Every(60)))
    with pytest.raises(PayloadError, match="knd"):
        make(every(60, payload={"knd": "long"}))


def test_a_plain_actor_may_be_scheduled(actors: RedisBroker, make: Make, clock: Clock) -> None:
    declare_plain(actors, "plain")
    runs = make(Schedule("p", "plain", Every(60), {"a": 1}))
    runs.fire_what_is_due()
    clock.tick(seconds=60)
    runs.fire_what_is_due()
    assert [name for name, _ in sent(actors).values()] == ["p"]


def test_the_loop_outlives_an_outage_and_is_not_ready_in_it(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.schedules.runner.RETRY_SECONDS", 0.05)
    own_redis.kill()
    with broker_at(own_redis.url, monkeypatch) as broker:
        declare_plain(broker, "reports.daily")
        runs = Scheduler(broker, [every(1)])
        stop = threading.Event()
        thread = threading.Thread(target=runs.run, args=(stop,))
        thread.start()
        try:
            assert not runs.is_ready
            own_redis.start()
            eventually(lambda: runs.is_ready and sent(broker))
        finally:
            stop.set()
            thread.join(10)
        assert not thread.is_alive()
