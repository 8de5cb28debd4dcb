import logging

import pytest

from service.broker import link as link_module
from service.broker.link import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, Link

REFUSED = ConnectionError("refused")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]  # a machine that has just booted
    monkeypatch.setattr(link_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def link(clock, caplog):
    caplog.set_level(logging.INFO)
    return Link("redis.example.com:6379")


def test_a_link_is_up_when_every_consumer_was_answered(link):
    assert link.is_up
    link.consumer_started("email")
    link.consumer_started("ai")
    assert not link.is_up
    link.succeeded("email")
    assert not link.is_up
    link.succeeded("ai")
    assert link.is_up
    link.failed("ai", REFUSED)
    link.succeeded("email")
    assert not link.is_up
    link.succeeded("ai")
    assert link.is_up


def test_a_consumer_with_nothing_to_fetch_for_is_not_waited_for_unless_it_has_failed(link):
    link.consumer_started("email")
    link.not_needed("email")
    assert link.is_up
    link.failed("email", REFUSED)
    link.not_needed("email")
    assert not link.is_up


def test_waits_double_up_to_a_cap_and_are_spread(link):
    waits = [link.failed("email", REFUSED) for _ in range(10)]
    for failures, wait in enumerate(waits):
        stated = min(FIRST_DELAY_SECONDS * 2**failures, MAX_DELAY_SECONDS)
        assert 0.75 * stated <= wait <= stated
    link.succeeded("email")
    assert link.failed("email", REFUSED) <= FIRST_DELAY_SECONDS


def test_a_whole_weekend_without_redis_is_waited_out(link):
    waits = [link.failed("email", REFUSED) for _ in range(60_000)]
    assert max(waits) <= MAX_DELAY_SECONDS


def test_the_first_failure_is_logged_at_once_with_host_and_port_and_one_line_speaks_for_all(link, caplog):
    for queue in ("email", "default", "ai"):
        for _ in range(5):
            link.failed(queue, REFUSED)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "Redis at redis.example.com:6379 can't be reached (refused); trying again in" in record.getMessage()


def test_an_outage_that_goes_on_is_told_again_and_its_end_once(link, clock, caplog):
    for queue in ("email", "ai"):
        link.failed(queue, REFUSED)
    clock[0] += MAX_DELAY_SECONDS + 0.1
    link.failed("email", REFUSED)
    link.failed("ai", REFUSED)
    link.succeeded("email")
    link.succeeded("ai")
    link.succeeded("ai")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]
    assert caplog.records[-1].getMessage() == "Redis at redis.example.com:6379 answers again"
    link.failed("ai", REFUSED)
    assert caplog.records[-1].levelname == "ERROR"
