"""Threads that wait for their settlement share a call, and none waits for ever."""

import threading
import time
from collections.abc import Callable

from service.broker.delivery import Lease
from service.broker.settlement import Settlement
from service.broker.together import Together
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


def test_each_thread_goes_on_when_its_own_is_carried_out_and_calls_are_shared() -> None:
    calls: list[list[str]] = []
    carried_out: set[str] = set()

    def carry_out(batch: list[Settlement]) -> None:
        time.sleep(0.001)  # a round trip
        calls.append([each.lease.entry for each in batch])
        carried_out.update(calls[-1])

    together = Together(carry_out, most=5, expects_more=lambda waiting: waiting < 8)

    def work(thread: int) -> None:
        for number in range(100):
            own = settlement(thread * 100 + number)
            together.settle(own)
            assert own.lease.entry in carried_out

    end(start(8, work))
    assert sorted(int(entry) for call in calls for entry in call) == list(range(800))
    assert max(map(len, calls)) == 5
    assert len(calls) < 400


def test_one_alone_does_not_wait() -> None:
    calls: list[int] = []
    together = Together(lambda batch: calls.append(len(batch)), most=5, expects_more=lambda waiting: False)
    for number in range(3):
        together.settle(settlement(number))
    assert calls == [1, 1, 1]


def test_an_error_is_the_leaders_own_and_the_line_goes_on() -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def carry_out(batch: list[Settlement]) -> None:
        go_on.wait(20)
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError("no")

    together = Together(carry_out, most=5, expects_more=lambda waiting: False)
    failed: list[int] = []

    def work(number: int) -> None:
        try:
            together.settle(settlement(number))
        except ValueError:
            failed.append(number)

    threads = start(1, work)
    eventually(lambda: together._is_led)
    threads += start(3, lambda number: work(number + 1))
    eventually(lambda: len(together._line) == 3)
    go_on.set()
    end(threads)
    assert (failed, calls) == ([0], [1, 3])
    assert not together._line
