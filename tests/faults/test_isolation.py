"""Jobs that run alone in a process: what the worker makes of their ends, and what they may expect of their process."""

import os
import signal
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from tests.e2e.conftest import Service
from tests.faults.test_crashes import LEASE, counts
from tests.jobs import send, state_of
from tests.servers import eventually

ALONE = {**LEASE, "CALLBOARD_ACTORS": "alone_jobs"}


def error_of(broker: RedisBroker, message: Message[Any]) -> str:
    eventually(lambda: state_of(broker, message) == "dead", 30)
    return (broker.find_record(message.message_id) or {})["error"]


def test_a_signal_to_the_whole_group_is_the_workers_business(service: Service, broker: RedisBroker) -> None:
    process = service.start_worker("first", **ALONE)
    message = send(broker, "alone.sleep", seconds=3.0)
    eventually(lambda: counts(service)["begin"] == 1)
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(os.getpgid(int(service.notes()[0].split()[1])), signal.SIGTERM)
    assert process.wait(20) == 0
    assert state_of(broker, message) == "succeeded"
    assert counts(service) == {"begin": 1, "end": 1}


def test_a_process_ends_with_its_worker_and_a_job_of_one_delivery_never_starts_twice(
    service: Service, broker: RedisBroker
) -> None:
    process = service.start_worker("first", **ALONE)
    # From a sender that does not know the actor, nor its one delivery.
    message = send(broker, "alone.sleep", seconds=6.0)
    eventually(lambda: counts(service)["begin"] == 1)
    os.killpg(process.pid, signal.SIGKILL)
    service.start_worker("second", **ALONE)
    assert "crashed" in error_of(broker, message)
    assert counts(service) == {"begin": 1}


def test_the_start_of_a_process_is_not_counted_against_the_time_limit(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ALONE)
    message = send(broker, "alone.at_once")
    eventually(lambda: state_of(broker, message) == "succeeded", 20)
    assert counts(service) == {"begin": 1}


@pytest.mark.parametrize(
    ("actor", "attempts", "words"),
    [
        ("alone.permanent", 1, ["Refused", "number 7: never", "def permanent"]),
        ("alone.throws", 1, ["Named", "number 7: named", "def throws"]),
        ("alone.unreadable", 2, ["Unreadable", "no readable message"]),
        ("alone.fails", 2, ["ValueError", "as always", "def fails"]),
    ],
)
def test_an_error_keeps_its_kind_its_words_and_its_traceback(
    service: Service, broker: RedisBroker, actor: str, attempts: int, words: list[str]
) -> None:
    service.start_worker("first", **ALONE)
    error = error_of(broker, send(broker, actor))
    for word in words[:2]:
        assert word in error
    assert "alone_jobs.py" in error, "the traceback is the job's own"
    assert counts(service) == {"begin": attempts}


def test_a_result_that_can_not_be_sent_is_kept_as_text(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ALONE)
    message = send(broker, "alone.odd_result")
    eventually(lambda: state_of(broker, message) == "succeeded", 20)


def test_an_old_payload_is_upgraded_there_too(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ALONE)
    message = send(broker, "alone.versioned", text="7")
    eventually(lambda: state_of(broker, message) == "succeeded", 20)
    assert (broker.find_record(message.message_id) or {})["result"] == "7"


def test_a_job_that_forks_and_dies_is_noticed_though_its_child_lives_on(service: Service, broker: RedisBroker) -> None:
    service.start_worker("first", **ALONE)
    assert "crashed" in error_of(broker, send(broker, "alone.forks_and_dies"))
