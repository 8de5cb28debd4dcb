"""The settling thread goes on, whatever fails in it, and loses no outcome that can be settled."""

import time
from collections.abc import Callable

import pytest
import redis

from service.broker.connections import is_outage
from service.broker.delivery import Lease
from service.broker.settlement import Settlement
from service.broker.settler import Settler
from tests.servers import eventually


def settlement(entry: str) -> Settlement:
    return Settlement(Lease("default", entry, "1", 0, 0, 1, 0, 3), "done", "{}")


def settler_of(carry_out: Callable[[str, list[Settlement]], None], given_up: list[str]) -> Settler:
    return Settler(
        carry_out,
        is_idle=lambda: False,
        give_up=lambda each: given_up.append(each.lease.entry),
    )


def test_an_outage_keeps_outcomes_in_their_order_until_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.broker.settler.RETRY_SECONDS", 0.01)
    failures = iter([redis.ConnectionError("gone"), redis.TimeoutError("slow"), redis.ReadOnlyError("READONLY")])
    settled: list[str] = []

    def carry_out(queue: str, batch: list[Settlement]) -> None:
        if failure := next(failures, None):
            raise failure
        settled.extend(each.lease.entry for each in batch)

    settler = settler_of(carry_out, given_up := [])
    for number in range(5):
        settler.add(settlement(str(number)))
    settler.start()
    assert settler.close(10)
    assert settled == ["0", "1", "2", "3", "4"]
    assert given_up == []


def test_an_outcome_that_can_not_be_sent_is_given_up_and_the_others_are_settled() -> None:
    settled: list[str] = []

    def carry_out(queue: str, batch: list[Settlement]) -> None:
        if any(each.lease.entry == "poison" for each in batch):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        settled.extend(each.lease.entry for each in batch)

    settler = settler_of(carry_out, given_up := [])
    for entry in ("a", "poison", "b"):
        settler.add(settlement(entry))
    settler.start()
    eventually(lambda: settled == ["a", "b"], 10)
    assert given_up == ["poison"]
    settler.add(settlement("later"))
    assert settler.close(10)
    assert settled == ["a", "b", "later"]


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        ("MISCONF Redis is configured to save RDB snapshots, but can't", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("BUSY Redis is busy running a script.", True),
        ("user_script:12: attempt to index a nil value script: 0f, on @user_script:12.", False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("Protocol error: invalid bulk length", False),
    ],
    ids=lambda given: str(given).split(" ")[0],
)
def test_an_error_of_the_server_is_an_outage_and_one_of_the_command_is_none(error: str, is_kept: bool) -> None:
    assert is_outage(redis.ResponseError(error)) is is_kept


def test_one_that_asks_for_it_is_settled_in_the_callers_thread_and_kept_in_an_outage() -> None:
    calls: list[list[str]] = []
    down = True

    def carry_out(queue: str, batch: list[Settlement]) -> None:
        calls.append([each.lease.entry for each in batch])
        if down:
            raise redis.ConnectionError("gone")

    settler = settler_of(carry_out, [])
    settler.settle_now(settlement("a"))
    assert calls == [["a"]]
    down = False
    settler.start()
    started = time.monotonic()
    assert settler.close(10)
    assert time.monotonic() - started < 10
    assert calls == [["a"], ["a"]]
