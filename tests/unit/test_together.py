"""Outcomes that come together share a call, and none is left behind."""

import threading
import time
from collections.abc import Callable

from service.broker.delivery import Lease
from service.broker.settlement import Settlement
from service.broker.together import MOST, Together
from tests.servers import eventually


def settlement(number: int) -> Settlement:
    return Settlement(Lease("default", str(number), "1", 0, 0, 1, 0, 3), "done", "{}")


def start(threads: int, work: Callable[[int], None]) -> list[threading.Thread]:
    started = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in started:
        thread.start()
    return started


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_all_are_carried_out_and_no_more_than_the_stated_number_is_on_its_way() -> None:
    calls: list[list[str]] = []
    given, carried_out, most = set[str](), set[str](), [0]

    def carry_out(batch: list[Settlement]) -> None:
        time.sleep(0.001)  # a round trip
        calls.append([each.lease.entry for each in batch])
        carried_out.update(calls[-1])

    together = Together(carry_out)

    def work(thread: int) -> None:
        for number in range(100):
            own = settlement(thread * 100 + number)
            together.settle(own)
            given.add(own.lease.entry)
            most[0] = max(most[0], len(given) - len(carried_out))

    end(start(8, work))
    assert sorted(int(entry) for call in calls for entry in call) == list(range(800))
    assert 1 < most[0] <= MOST
    assert 8 < max(map(len, calls)) <= MOST, "more in a call than there are threads"


def test_who_waits_goes_on_when_its_own_is_carried_out() -> None:
    calls: list[int] = []
    carried_out: set[str] = set()

    def carry_out(batch: list[Settlement]) -> None:
        time.sleep(0.001)
        calls.append(len(batch))
        carried_out.update(each.lease.entry for each in batch)

    together = Together(carry_out)

    def work(thread: int) -> None:
        for number in range(100):
            own = settlement(thread * 100 + number)
            together.settle(own, waits=True)
            assert own.lease.entry in carried_out

    end(start(8, work))
    assert len(carried_out) == 800
    assert max(calls) <= 8
    assert len(calls) < 400


def test_one_alone_is_carried_out_by_its_own_thread() -> None:
    calls: list[int] = []
    together = Together(lambda batch: calls.append(len(batch)))
    for number in range(3):
        together.settle(settlement(number))
        assert len(calls) == number + 1
    assert calls == [1, 1, 1]


def test_who_comes_while_a_call_is_under_way_goes_on_until_there_is_no_more_room() -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def carry_out(batch: list[Settlement]) -> None:
        assert go_on.wait(20)
        calls.append(len(batch))

    together = Together(carry_out)
    leader = start(1, lambda number: together.settle(settlement(0)))
    eventually(lambda: together._leading.locked() and not together._line)
    for number in range(1, MOST):
        together.settle(settlement(number))
    late = start(1, lambda number: together.settle(settlement(MOST)))
    late[0].join(0.2)
    assert late[0].is_alive()
    go_on.set()
    end(leader + late)
    assert sum(calls) == MOST + 1


def test_an_error_is_the_leaders_own_and_the_line_goes_on() -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def carry_out(batch: list[Settlement]) -> None:
        assert go_on.wait(20)
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError("no")

    together = Together(carry_out)
    failed: list[int] = []

    def work(number: int) -> None:
        try:
            together.settle(settlement(number), waits=number > 0)
        except ValueError:
            failed.append(number)

    threads = start(1, work)
    eventually(lambda: together._leading.locked() and not together._line)
    threads += start(3, lambda number: work(number + 1))
    eventually(lambda: len(together._line) == 3)
    go_on.set()
    end(threads)
    assert (failed, calls) == ([0], [1, 3])
    assert not together._line
