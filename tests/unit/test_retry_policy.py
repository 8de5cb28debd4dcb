import itertools
import random
import statistics

import pytest
from dramatiq.errors import RateLimitExceeded, Retry
from hypothesis import given
from hypothesis import strategies as st

from service.errors import PayloadError, Permanent
from service.middleware.retry_policy import RetryPolicy, delay_before_next_attempt
from service.queues import MAX_DELAY_SECONDS

LONGEST_MS = MAX_DELAY_SECONDS * 1000
bounds = st.tuples(st.integers(0, LONGEST_MS), st.integers(0, LONGEST_MS)).map(sorted)


def delay(attempt, min_ms=1000, max_ms=5000, error=None, max_attempts=10_000, seed=0, throws=()):
    policy = RetryPolicy(max_attempts, min_ms, max_ms, throws)
    return delay_before_next_attempt(error or RuntimeError(), attempt, policy, random.Random(seed))


@given(bounds, st.integers(1, 5000), st.integers())
def test_a_wait_is_never_below_the_stated_delay_nor_above_the_cap(bounds, attempt, seed):
    shortest, longest = bounds
    stated = min(shortest * 2 ** (attempt - 1), longest)
    waited = delay(attempt, shortest, longest, seed=seed)
    assert isinstance(waited, int)
    assert shortest <= stated <= waited <= longest


@given(bounds, st.integers())
def test_the_five_thousandth_attempt_waits_for_the_cap(bounds, seed):
    shortest, longest = max(bounds[0], 1), max(bounds[1], 1)
    assert delay(5000, shortest, longest, seed=seed) == longest


@pytest.mark.parametrize(("shortest", "longest"), [(1000, 1000), (0, 0), (0, 5000), (LONGEST_MS, LONGEST_MS)])
def test_bounds_that_meet_leave_one_wait(shortest, longest):
    waits = {delay(attempt, shortest, longest) for attempt in (1, 2, 50, 5000)}
    assert waits == {shortest}


def test_a_cap_below_the_delay_still_caps():
    # Declarations refuse it; a message's own options may still say so.
    assert delay(1, 5000, 1000) == 1000


def test_waits_double_and_spread():
    means = [statistics.mean(delay(attempt, 1000, 10**9, seed=seed) for seed in range(300)) for attempt in range(1, 11)]
    assert all(1.9 < later / sooner < 2.1 for sooner, later in itertools.pairwise(means))
    assert len({delay(3, 1000, 10**9, seed=seed) for seed in range(300)}) > 100


def test_the_mean_does_not_shrink_with_the_attempts():
    means = [statistics.mean(delay(attempt, seed=seed) for seed in range(200)) for attempt in range(1, 51)]
    assert means == sorted(means)


@pytest.mark.parametrize("attempt", [3, 4, 5000])
def test_no_attempt_follows_the_last(attempt):
    assert delay(2, max_attempts=3) is not None
    assert delay(attempt, max_attempts=3) is None
    assert delay(1, max_attempts=1) is None


@pytest.mark.parametrize("error", [Permanent("no such mailbox"), PayloadError("email.send", [("to", "is missing")])])
def test_what_no_repetition_can_mend_is_never_repeated(error):
    assert delay(1, error=error) is None


def test_a_permanent_error_of_the_authors_own_is_never_repeated():
    class NoSuchCustomer(Permanent):
        pass

    assert delay(1, error=NoSuchCustomer()) is None
    assert delay(1, error=KeyError("x"), throws=(KeyError,)) is None
    assert delay(1, error=ValueError("x"), throws=(KeyError,)) is not None


@pytest.mark.parametrize("asked", [0, 1, 60_000, LONGEST_MS])
def test_the_wait_that_an_actor_asks_for_is_honoured(asked):
    assert delay(1, error=Retry("busy", delay=asked)) == asked
    assert delay(1, error=RateLimitExceeded("busy")) >= 1000
    assert delay(1, error=Retry("busy")) >= 1000


@pytest.mark.parametrize(
    ("asked", "waited"),
    [(-5, 0), (float("nan"), 0), (float("inf"), LONGEST_MS), (10**30, LONGEST_MS), (1500.7, 1501)],
)
def test_a_wait_that_can_not_be_is_bounded(asked, waited):
    assert delay(1, error=Retry("busy", delay=asked)) == waited


def test_asking_for_a_wait_gives_no_further_attempt():
    assert delay(3, error=Retry("busy", delay=10), max_attempts=3) is None


# A predicate in the place of a number.


def decided(answer, error=None, throws=()):
    policy = RetryPolicy(1, 1000, 5000, throws, retry_when=lambda retries, error: answer(retries))
    return [
        delay_before_next_attempt(error or RuntimeError(), attempt, policy, random.Random(0)) is not None
        for attempt in range(1, 6)
    ]


def test_a_predicate_is_asked_with_the_retries_so_far_whatever_their_bound():
    assert decided(lambda retries: retries < 3) == [True, True, True, False, False]
    assert decided(lambda retries: 0) == [False] * 5


@pytest.mark.parametrize(("error", "throws"), [(Permanent(), ()), (KeyError(), (KeyError,))])
def test_a_predicate_is_not_asked_about_what_is_final(error, throws):
    assert decided(lambda retries: True, error, throws) == [False] * 5
