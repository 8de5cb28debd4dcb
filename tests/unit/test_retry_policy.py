import itertools
import pickle
import random
import smtplib
import statistics

import psycopg
import pydantic
import pytest
import redis
from dramatiq.errors import RateLimitExceeded, Retry
from hypothesis import given
from hypothesis import strategies as st

from service.errors import AuthenticationFailed, Declined, PayloadError, Permanent, RetryAfter, Snooze
from service.middleware.error_kinds import contradiction
from service.middleware.retry_policy import RetryPolicy, delay_before_next_attempt, snooze_ms
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


# A stated rule.


@given(st.integers(0, 400_000), st.integers(0, LONGEST_MS), st.floats(1, 1000), st.integers(1, 10_000), st.integers())
def test_a_rule_without_jitter_is_kept_exactly(shortest, cap, factor, attempt, seed):
    longest = max(shortest, cap)
    policy = RetryPolicy(10**6, shortest, longest, factor=factor, jitter=0)
    waited = delay_before_next_attempt(OSError(), attempt, policy, random.Random(seed))
    assert isinstance(waited, int)
    try:
        stated = min(shortest * factor ** (attempt - 1), longest)
    except OverflowError:
        stated = longest if shortest else 0
    assert stated <= waited < stated + 1


def test_two_to_the_power_of_the_retries_in_minutes():
    policy = RetryPolicy(20, 60_000, LONGEST_MS, factor=2, jitter=0)
    waits = [delay_before_next_attempt(OSError(), retries + 1, policy, random.Random()) for retries in range(10)]
    assert waits == [2**retries * 60_000 for retries in range(10)]


@given(bounds, st.floats(1, 1000), st.floats(0, 1), st.integers(1, 5000), st.integers())
def test_jitter_stays_between_what_is_stated_and_its_part_or_the_cap(bounds, factor, jitter, attempt, seed):
    shortest, longest = bounds
    exact, spread = (
        delay_before_next_attempt(
            OSError(), attempt, RetryPolicy(10**6, shortest, longest, factor=factor, jitter=part), random.Random(seed)
        )
        for part in (0, jitter)
    )
    assert exact <= spread <= min(longest, exact * (1 + jitter) + 1)


# Which errors.


class Aborted(ConnectionError):
    pass


class TransportError(Exception):
    """As httpx names it."""


class ConnectError(TransportError):
    pass


def is_retried(error, retry_for=(), permanent_for=()):
    policy = RetryPolicy(3, 1, 1, retry_for=retry_for, permanent_for=permanent_for)
    return delay_before_next_attempt(error, 1, policy, random.Random(0)) is not None


def validation_error():
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    return caught.value


def bad_login():
    return smtplib.SMTPAuthenticationError(535, b"no")


PASSING = [
    ConnectionResetError(),
    TimeoutError(),
    Aborted(),
    redis.ConnectionError(),
    redis.TimeoutError(),
    psycopg.OperationalError(),
    smtplib.SMTPServerDisconnected(),
    ConnectError(),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_connections_and_time_outs_are_retried_unless_the_author_says_otherwise(error):
    assert is_retried(error)
    assert is_retried(error, retry_for=(KeyError,))
    assert not is_retried(error, permanent_for=(type(error),))


@pytest.mark.parametrize(
    "make", [validation_error, redis.AuthenticationError, bad_login, AuthenticationFailed, Declined]
)
def test_validation_authentication_and_declined_are_never_retried(make):
    assert not is_retried(make())
    assert not is_retried(make(), retry_for=(OSError, Exception))


def test_the_author_may_name_what_is_known_as_final_but_for_what_says_so_itself():
    assert is_retried(validation_error(), retry_for=(pydantic.ValidationError,))
    assert not is_retried(Declined(), retry_for=(Exception,))


def test_the_nearest_class_decides():
    assert [is_retried(error, (LookupError,), (KeyError,)) for error in (IndexError(), KeyError())] == [True, False]
    assert [is_retried(error, (KeyError,), (LookupError,)) for error in (IndexError(), KeyError())] == [False, True]


def test_where_the_author_names_what_to_retry_the_rest_is_final():
    assert is_retried(KeyError(), retry_for=(KeyError,))
    assert not is_retried(ValueError(), retry_for=(KeyError,))
    assert is_retried(ValueError(), permanent_for=(KeyError,))
    assert is_retried(RetryAfter(5), retry_for=(KeyError,))


@pytest.mark.parametrize(
    ("retry_for", "permanent_for", "words"),
    [
        ((KeyError,), (KeyError,), "KeyError is in retry_for and in permanent_for"),
        ((Declined,), (), "Declined, which is never retried"),
        ((), (RetryAfter,), "RetryAfter, which asks to run again"),
        ((), (Snooze,), "Snooze, which asks to run again"),
        (("KeyError",), (), "no class of errors"),
        ((), (KeyError("x"),), "no class of errors"),
        ((int,), (), "no class of errors"),
    ],
)
def test_what_contradicts_itself_is_told(retry_for, permanent_for, words):
    assert words in (contradiction(retry_for, permanent_for) or "")
    assert contradiction((KeyError,), (LookupError,)) is None


# What the other side asks for.


class Throttled(Exception):
    def __init__(self, retry_after):
        super().__init__()
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (0, 0),
        (1.5, 1500),
        (86_400, 86_400_000),
        (-1, 0),
        (float("nan"), 0),
        (float("inf"), LONGEST_MS),
        (1e300, LONGEST_MS),
    ],
)
def test_retry_after_is_kept_and_bounded(asked, waited):
    assert delay(1, error=RetryAfter(asked)) == waited
    assert delay(3, error=RetryAfter(asked), max_attempts=3) is None
    assert snooze_ms(Snooze(asked)) == waited
    assert delay(1, 1000, 1000, error=Throttled(asked)) == max(1000, waited)


@pytest.mark.parametrize("odd", [None, "soon", True, [], {}])
def test_an_attribute_that_is_no_number_says_nothing(odd):
    assert delay(1, 1000, 1000, error=Throttled(odd)) == 1000


def test_what_asks_for_a_time_says_so_in_words():
    assert str(RetryAfter(5)) == "to be tried again after 5 s"
    assert str(RetryAfter(5, "slow down")) == "slow down"
    assert str(Snooze(5)) == "to be run in 5 s"
    assert pickle.loads(pickle.dumps(RetryAfter(5, "slow down"))).retry_after == 5
    assert pickle.loads(pickle.dumps(Snooze(5))).seconds == 5


@pytest.mark.parametrize("kind", [RetryAfter, Snooze])
def test_a_time_that_is_no_number_is_told_where_it_is_written(kind):
    with pytest.raises(TypeError, match="seconds='5' must be a number"):
        kind("5")
