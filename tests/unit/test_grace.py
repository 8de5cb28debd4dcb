"""The sums of a stop: what a worker is given, what its jobs have of it, and when a consumer is stuck."""

import time

import pytest

from service.broker.grace import ABOVE_LIMIT_SECONDS, grace_seconds_of, working_seconds_of
from service.broker.pulse import Pulse
from service.cli.worker import programs
from service.queues import QUEUES


@pytest.mark.parametrize("queue", QUEUES)
def test_by_default_a_job_that_has_just_begun_has_all_of_its_time_limit(queue):
    limit = QUEUES[queue].time_limit_seconds
    grace = grace_seconds_of([queue], None)
    assert grace == limit + ABOVE_LIMIT_SECONDS
    assert limit < working_seconds_of(grace) < grace - 10


def test_the_longest_limit_counts_and_what_is_set_counts_more():
    assert grace_seconds_of(["email", "reports"], None) == 3630
    assert grace_seconds_of(["email", "reports"], 330.0) == 330


@pytest.mark.parametrize(("grace", "working"), [(330, 315), (30, 20), (6, 4), (3, 2)])
def test_of_a_short_grace_a_third_is_kept_for_giving_back(grace, working):
    assert working_seconds_of(grace) == working


def test_the_processes_of_callboard_worker_have_it_as_their_limit(monkeypatch):
    (program,) = programs(["reports"])
    assert program.argv[program.argv.index("--worker-shutdown-timeout") + 1] == "3615000"
    assert programs(["email"])[0].argv[program.argv.index("--worker-shutdown-timeout") + 1] == "315000"


def test_a_consumer_that_does_not_come_round_is_named(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pulse = Pulse()
    assert pulse.silent(60) == []
    pulse.beat("email")
    pulse.beat("ai")
    now = 150.0
    pulse.beat("ai")
    now = 161.0
    assert pulse.silent(60) == ["email"]
