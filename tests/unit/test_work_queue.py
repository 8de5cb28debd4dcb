import threading
import time
from queue import Empty
from types import SimpleNamespace

import pytest

from service.broker.work_queue import WorkQueue


def delivery(number, left=None):
    return SimpleNamespace(number=number, left=left)


def test_what_is_handed_over_comes_out_in_its_order_also_beside_dramatiqs_own_items():
    queue = WorkQueue()
    queue.put_all(delivery(number) for number in range(3))
    queue.put(SimpleNamespace(priority=-1, message=delivery(3)))
    queue.put_all([delivery(4)])
    assert [queue.get(timeout=1).message.number for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(Empty):
        queue.get(timeout=0.01)


def test_what_nobody_has_begun_can_be_taken_out_and_counts_as_ended():
    queue = WorkQueue()
    queue.put_all(delivery(number) for number in range(3))
    begun = queue.get_nowait()
    assert [left.number for left in queue.take_all()] == [1, 2]
    assert queue.unfinished_tasks == 1
    queue.task_done()
    queue.join()
    assert begun.message.number == 0


def test_what_has_left_its_thread_is_not_taken_out_for_something_unbegun():
    queue = WorkQueue()
    queue.put_all(delivery(number) for number in range(2))
    over = queue.get_nowait().message
    over.left = "its run"
    queue.put_again(over)
    assert [left.number for left in queue.take_all()] == [1]
    assert queue.unfinished_tasks == 1
    assert queue.get_nowait().message is over
    queue.task_done()
    queue.join()


def test_many_threads_end_each_once_and_join_waits_for_the_last():
    queue, seen = WorkQueue(), []

    def work():
        while (item := queue.get()).message is not None:
            seen.append(item.message.number)
            time.sleep(0.0001)
            queue.task_done()

    def feed(start):
        queue.put_all(delivery(start + number) for number in range(100))

    workers = [threading.Thread(target=work) for _ in range(8)]
    feeders = [threading.Thread(target=feed, args=(start,)) for start in range(0, 500, 100)]
    for thread in [*workers, *feeders]:
        thread.start()
    for thread in feeders:
        thread.join()
    queue.join()
    assert sorted(seen) == list(range(500))
    assert queue.unfinished_tasks == 0
    for _ in workers:
        queue.put(SimpleNamespace(message=None))
    for thread in workers:
        thread.join()
