import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broker.slots import Slots
from service.queues import QUEUES

LONG = [name for name, policy in QUEUES.items() if not policy.fetch_ahead]
queues = st.sampled_from(list(QUEUES))


@pytest.fixture
def clock(monkeypatch):
    """The clock of the slots, in seconds: it stands until the test sets it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("service.broker.slots.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@given(st.integers(1, 200), st.lists(st.tuples(queues, st.integers(0, 60)), max_size=60))
def test_a_queue_never_holds_more_than_its_concurrency_nor_long_jobs_more_than_the_threads(threads, steps):
    slots = Slots(threads)
    held = Counter()
    for queue, returned in steps:
        held[queue] += slots.take(queue)
        assert held[queue] <= QUEUES[queue].concurrency
        assert held[queue] <= threads, "nothing has ended, so nothing is known to be short"
        assert sum(held.values()) <= threads, "each finds a thread at once"
        assert slots.is_idle == (not any(held.values()))
        settled = min(returned, held[queue])
        slots.give_back(queue, settled)
        held[queue] -= settled


@given(st.integers(1, 60), st.lists(st.booleans(), max_size=120))
def test_jobs_without_threads_and_with_them_stay_within_the_concurrency_together(threads, steps):
    slots = Slots(threads)
    concurrency = QUEUES["email"].concurrency
    held = away = 0
    for leaves in steps:
        held += slots.take("email")
        assert held <= concurrency
        assert held - away <= threads, "each that has not left finds a thread at once"
        if leaves:
            may_leave, _ = slots.leave("email")
            assert may_leave == (away + 1 + threads <= concurrency)
            away += may_leave
        elif away:
            slots.come_back("email")
            slots.give_back("email")
            away, held = away - 1, held - 1


def test_a_consumer_that_waits_for_a_thread_is_called_when_a_job_leaves_its_thread():
    slots = Slots(2)
    assert slots.take("email") == 2
    assert slots.take("email") == 0
    assert slots.leave("email") == (True, ["email"])
    assert slots.take("email") == 1


def ask(slots, queue):
    """Take until there is nothing to take, as a consumer does: from then on it waits to be called."""
    taken = slots.take(queue)
    return taken + ask(slots, queue) if taken else 0


def drain(slots, clock, queue, job_seconds, rounds, spread_seconds=0.0):
    """Let every thread work through jobs of one length, and return the most that was held beyond the threads."""
    held = ask(slots, queue)
    running = min(held, slots.threads)
    beyond = 0
    for _ in range(rounds):
        clock.now += job_seconds - spread_seconds * running
        for _ in range(running):
            clock.now += spread_seconds
            held -= 1
            if slots.finished(queue):
                held += ask(slots, queue)
            beyond = max(beyond, held - slots.threads)
    for _ in range(held):
        slots.finished(queue)
    return beyond


@pytest.mark.parametrize("job_seconds", [0.0005, 0.001, 0.005])
def test_what_is_held_beyond_the_threads_is_about_20_ms_of_short_jobs(clock, job_seconds):
    beyond = drain(Slots(8), clock, "email", job_seconds, 200)
    assert 0.4 * 8 * 0.02 / job_seconds <= beyond <= 1.2 * 8 * 0.02 / job_seconds


@pytest.mark.parametrize("spread_seconds", [0.0, 0.0001, 0.002, 0.005, 0.02])
@pytest.mark.parametrize("job_seconds", [0.2, 1, 60])
def test_nothing_is_held_beyond_the_threads_when_jobs_are_long_also_when_they_end_together(
    clock, job_seconds, spread_seconds
):
    assert drain(Slots(8), clock, "email", job_seconds, 20, spread_seconds) <= 8 * 0.02 / job_seconds


def test_how_short_the_jobs_were_before_a_pause_says_nothing_of_those_after_it(clock):
    slots = Slots(8)
    assert drain(slots, clock, "email", 0.0005, 200) > 0
    assert slots.is_idle
    clock.now += 60
    assert slots.take("email") == 8


def test_more_threads_than_a_queue_may_use_fetch_nothing_ahead(clock):
    slots = Slots(threads=20)
    assert slots.take("default") == 10
    for _ in range(1000):
        clock.now += 0.001
        slots.finished("default")
        assert slots.take("default") == 1


@given(st.integers(1, 200), queues)
def test_what_was_given_back_can_be_taken_again(threads, queue):
    slots = Slots(threads)
    taken = slots.take(queue)
    assert taken > 0
    assert slots.take(queue) == 0
    slots.give_back(queue, taken)
    assert slots.take(queue) == taken


def test_a_long_job_is_not_fetched_for_a_thread_that_another_long_job_holds():
    slots = Slots(threads=6)
    assert slots.take("reports") == 5
    assert slots.take("media") == 1
    assert slots.take("ai") == 0
    assert slots.take("email") == 0
    assert slots.give_back("reports") == ["ai"], "it came first"
    assert slots.take("ai") == 1
    assert slots.finished("media") == ["email"]
    assert slots.take("email") == 1


def test_a_free_thread_is_offered_to_a_queue_that_may_use_it():
    slots = Slots(threads=8)
    assert ask(slots, "ai") == 2
    assert ask(slots, "default") == 6
    assert slots.finished("default") == ["default"], "a third job is more than the other's concurrency"
    assert ask(slots, "default") == 1
    assert slots.take("webhooks") == 0
    assert slots.finished("ai") == ["ai"], "it came before"
    assert slots.give_back("ai", slots.take("ai")) == ["default"], "the next in the line, since that one left it"


@pytest.fixture
def slow_table(monkeypatch):
    """Let threads meet inside of `take`: it reads the table while it counts."""

    def slow_policy_of(queue):
        time.sleep(0.0001)
        return QUEUES[queue]

    monkeypatch.setattr("service.broker.slots.policy_of", slow_policy_of)


@pytest.mark.parametrize("threads", [1, 6, 80])
def test_many_threads_together_stay_within_the_bounds(slow_table, threads):
    slots, held, broken = Slots(threads), Counter(), []
    counting = threading.Lock()

    def consume(queue):
        for _ in range(30):
            taken = slots.take(queue)
            with counting:
                held[queue] += taken
                if held[queue] > QUEUES[queue].concurrency or sum(held[name] for name in LONG) > threads:
                    broken.append(dict(held))
            time.sleep(0.0001)
            with counting:
                held[queue] -= taken
            slots.give_back(queue, taken)

    workers = [threading.Thread(target=consume, args=(queue,)) for queue in [*QUEUES, *LONG, *LONG]]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not broken
    assert not any(held.values())
    assert slots.is_idle
    assert slots.take("email") == min(50, threads)


def test_a_thread_that_ends_a_job_never_waits_and_whoever_has_the_lock_counts_it():
    slots = Slots(threads=2)
    assert slots.take("ai") == 2
    assert slots.take("ai") == 0, "its consumer waits to be called"
    with slots._lock:  # as while another thread is inside
        assert slots.finished("ai") == []
    assert slots.count_ended() == ["ai"]
    assert slots.take("ai") == 1
    assert slots.count_ended() == []


@pytest.mark.parametrize("threads", [2, 16])
def test_no_end_of_a_job_is_lost_among_many_threads(slow_table, threads):
    slots = Slots(threads=50)
    held = slots.take("email")
    ended, called = threading.Barrier(threads), []

    def end_some(count):
        ended.wait()
        for _ in range(count):
            called.extend(slots.finished("email"))
            slots.take("ai")
            called.extend(slots.count_ended())

    share = held // threads
    workers = [threading.Thread(target=end_some, args=(share,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert slots._held["email"] == held - share * threads
    assert not slots._ended
