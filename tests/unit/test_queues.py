import dataclasses
import math

import pytest

from service.errors import DeclarationError
from service.queues import MAX_DELAY_SECONDS, QUEUES, Backoff, policy_of

# concurrency, fetch ahead, soft limit, hard limit: the numbers that people size their fleets by.
PROMISED = {
    "email": (50, True, None, 300),
    "default": (10, True, None, 300),
    "high-priority": (2, True, None, 300),
    "webhooks": (20, True, None, 300),
    "reports": (5, False, 3000, 3600),
    "media": (5, False, None, 300),
    "ai": (2, False, None, 300),
    "task-outcomes": (4, True, None, 300),
}


def test_the_table_holds_what_is_promised():
    assert {
        name: (
            policy.concurrency,
            policy.fetch_ahead,
            policy.soft_time_limit_seconds,
            policy.time_limit_seconds,
        )
        for name, policy in QUEUES.items()
    } == PROMISED


@pytest.mark.parametrize("policy", QUEUES.values(), ids=lambda policy: policy.name)
def test_every_queue_tries_three_times_from_a_minute_on_and_leases_for_half_a_minute(policy):
    assert policy.max_attempts == 3
    assert policy.backoff.delay_seconds == 60
    assert policy.lease_seconds == 30
    assert QUEUES[policy.name] is policy


def test_an_unknown_queue_is_refused_with_the_known_ones():
    with pytest.raises(DeclarationError) as refused:
        policy_of("e-mail")
    assert "'e-mail'" in str(refused.value)
    assert all(name in str(refused.value) for name in QUEUES)
    assert "service/queues.py" in str(refused.value)


def test_the_table_can_not_be_changed_at_run_time():
    with pytest.raises(TypeError):
        QUEUES["mine"] = policy_of("email")  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy_of("email").concurrency = 51  # type: ignore[misc]


@pytest.mark.parametrize(("delay", "cap"), [(0, 0), (0, 1), (1, 1), (0.5, 60), (MAX_DELAY_SECONDS, MAX_DELAY_SECONDS)])
def test_a_backoff_within_its_bounds_is_taken(delay, cap):
    assert Backoff(delay, cap).cap_seconds == cap


@pytest.mark.parametrize(
    ("delay", "cap"),
    [(2, 1), (-1, 1), (1, MAX_DELAY_SECONDS + 1), (math.nan, 1), (1, math.nan), (1, math.inf), (7200, 3600)],
)
def test_a_backoff_out_of_its_bounds_is_refused(delay, cap):
    with pytest.raises(DeclarationError, match="must hold"):
        Backoff(delay, cap)


@pytest.mark.parametrize(
    "rule", [{"factor": 0.5}, {"factor": math.nan}, {"factor": 1001}, {"jitter": -0.1}, {"jitter": 2}]
)
def test_a_rule_that_can_not_be_is_refused(rule):
    with pytest.raises(DeclarationError, match=f"{next(iter(rule))}=.* must hold"):
        Backoff(1, 2, **rule)
