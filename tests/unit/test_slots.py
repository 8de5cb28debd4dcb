import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broker.slots import Slots
from service.queues import QUEUES

LONG = [name for name, policy in QUEUES.items() if not policy.fetch_ahead]
queues = st.sampled_from(list(QUEUES))


@given(st.integers(1, 200), st.lists(st.tuples(queues, st.integers(0, 60)), max_size=60))
def test_a_queue_never_holds_more_than_its_concurrency_nor_long_jobs_more_than_the_threads(threads, steps):
    slots = Slots(threads)
    held = Counter()
    for queue, returned in steps:
        held[queue] += slots.take(queue)
        assert held[queue] <= QUEUES[queue].concurrency
        assert held[queue] <= 2 * threads
        assert sum(held[name] for name in LONG) <= threads
        settled = min(returned, held[queue])
        slots.give_back(queue, settled)
        held[queue] -= settled


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
    assert slots.take("email") > 0
    slots.give_back("reports")
    assert slots.take("ai") == 1


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
    assert slots.take("email") == min(50, 2 * threads)
