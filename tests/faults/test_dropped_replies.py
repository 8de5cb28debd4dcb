"""The server did the work and its reply never came: nothing is done twice, and nothing waits for more than a lease."""

import time
from collections import Counter
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.errors import BrokerUnavailable
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.proxy import Proxy, calls, happened
from tests.servers import eventually

WORKER = {"CALLBOARD_LEASE_SECONDS": "3", "CALLBOARD_ACTORS": "fault_jobs,outages_jobs"}


def counts(service: Service) -> Counter[str]:
    return Counter(line.split()[0] for line in service.notes())


def a_message(word: str) -> Message[Any]:
    return Message(queue_name="default", actor_name="fault.good", args=(word, 0.0), kwargs={}, options={})


def all_end(broker: RedisBroker, messages: list[Message[Any]], state: str = "succeeded") -> None:
    eventually(lambda: all(state_of(broker, message) == state for message in messages), 40)
    assert broker.wire.backlog("default") == 0


def test_a_send_whose_reply_is_lost_is_repeated_and_stored_once(
    proxy: Proxy, broker: RedisBroker, sender: RedisBroker
) -> None:
    """Case 02-D33."""
    lost = proxy.lose_replies(calls("enqueue"))
    message = send(sender, "fault.good", "lost")
    assert lost.met == 1
    assert broker.wire.backlog("default") == 1
    sender.send(message)
    assert broker.wire.backlog("default") == 2, "somebody's own retry of the same id is a further send"


def test_a_batch_whose_reply_is_lost_is_repeated_and_stored_once(
    proxy: Proxy, broker: RedisBroker, sender: RedisBroker
) -> None:
    """Case 02-D33."""
    lost = proxy.lose_replies(calls("enqueue"))
    report = sender.send_many([a_message(str(number)) for number in range(100)])
    assert lost.met == 1
    assert (len(report.stored), report.failed) == (100, [])
    assert broker.wire.backlog("default") == 100


def test_a_send_whose_replies_are_all_lost_is_one_job_and_reported_as_maybe_stored(
    proxy: Proxy, broker: RedisBroker, sender: RedisBroker
) -> None:
    """Case 02-D33: who goes on repeating it by its id, and says so, still has one job."""
    message = a_message("lost")
    proxy.lose_replies(calls("enqueue"), 4)
    for _ in range(2):
        with pytest.raises(BrokerUnavailable) as error:
            sender.send(message, once_within_seconds=60)
        assert error.value.may_be_stored is True
    assert sender.send(message, once_within_seconds=60) is False, "it is there"
    assert broker.wire.backlog("default") == 1


def test_fetched_jobs_whose_replies_are_lost_run_once_and_no_worker_has_died_of_them(
    service: Service, proxy: Proxy, broker: RedisBroker
) -> None:
    """Case 02-D33: as often as a job may be delivered at all, and long before a lease ends."""
    service.start_worker("worker", **{**WORKER, "CALLBOARD_LEASE_SECONDS": "60"})
    lost = proxy.lose_replies(calls("fetch"), 3)
    message = send(broker, "fault.good", "a", 0.0)
    happened(lost, 3)
    all_end(broker, [message])
    more = [send(broker, "fault.good", f"j{number}", 0.0) for number in range(20)]
    all_end(broker, more)
    assert set(counts(service).values()) == {1}
    assert broker.client.exists(Keys(broker.namespace, "default").lapses) == 0


def test_outcomes_whose_reply_is_lost_are_settled_once_and_are_no_lost_leases(
    service: Service, proxy: Proxy, broker: RedisBroker
) -> None:
    """Case 02-D33: done, dead and retry."""
    service.start_worker("worker", **WORKER)
    states = {"fault.good": "succeeded", "outage.die": "dead", "outage.fail_once": "succeeded"}
    for number, (actor, state) in enumerate(states.items()):
        lost = proxy.lose_replies(calls("settle"))
        message = send(broker, actor, "a")
        happened(lost)
        eventually(lambda number=number: service.log("worker").count("only the reply was lost") == number + 1)
        all_end(broker, [message], state)
    assert counts(service) == dict.fromkeys(["start-a", "end-a", "die-a", "attempt-1-a", "attempt-2-a"], 1)
    assert "lease had ended" not in service.log("worker")


def test_renewals_that_fail_are_made_up_for_before_the_lease_ends(
    service: Service, proxy: Proxy, broker: RedisBroker
) -> None:
    """Case 02-D33: one reply is lost, and then two thirds of a lease go by without a renewal."""
    service.start_worker("worker", **{**WORKER, "CALLBOARD_LEASE_SECONDS": "5"})
    lost = proxy.lose_replies(calls("renew"))
    message = send(broker, "fault.good", "long", 7.0)
    deadlines = Keys(broker.namespace, "default").deadlines

    def ends_in() -> float:
        seconds, microseconds = broker.client.time()
        return broker.client.zscore(deadlines, message.message_id) / 1000 - seconds - microseconds / 1_000_000

    happened(lost)
    eventually(lambda: ends_in() > 4.5)
    with proxy.answering("READONLY You can't write against a read only replica.", calls("renew")):
        eventually(lambda: ends_in() < 1.5)
    least = ends_in()
    while ends_in() <= least:
        least = ends_in()
        time.sleep(0.02)
    assert least > 0, "a further third of a lease would have been too long"
    all_end(broker, [message])
    assert counts(service) == {"start-long": 1, "end-long": 1}
