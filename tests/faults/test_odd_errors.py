"""Errors that can't be rebuilt, read or bounded by themselves: each is a failure like any other, and harms nobody."""

import json
import time
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker
from tests.e2e.conftest import MODULES, Service
from tests.jobs import send, state_of
from tests.servers import eventually

KINDS = {
    "TwoArguments": "number 7: never",
    "Local": "only here",
    "Holds": "holds something",
    "Holds a socket": "holds something",
    "NoText": "no readable message",
    "NoWayOut": "in",
    "AnswersNothing": "at all",
    "BecomesAnother": "thing",
    "OnlyInTheChild": "made there",
    "ValueError of 50 MB": "ééé",
    "ValueError in a circle": "first",
}


def test_every_kind_is_tried() -> None:
    assert set(KINDS) == set(_odd_errors())


def _odd_errors() -> list[str]:
    source = (MODULES / "odd_errors_jobs.py").read_text()
    table = source.partition("ERRORS: dict[str, Any] = {")[2].partition("\n}")[0]
    return [line.split('"')[1] for line in table.strip().splitlines()]


def pid_of(broker: RedisBroker) -> int:
    message = send(broker, "odd.next")
    eventually(lambda: state_of(broker, message) == "succeeded", 20)
    return json.loads((broker.find_record(message.message_id) or {})["result"])


# Each start of a process of its own takes about a second.
@pytest.mark.parametrize(
    ("actor", "as_reasons"), [("odd.beside", list(KINDS)), ("odd.alone", ["TwoArguments", "NoText", "Holds"])]
)
@pytest.mark.timeout(240)
def test_each_is_retried_and_dies_with_its_class_and_a_bounded_text(
    service: Service, broker: RedisBroker, actor: str, as_reasons: list[str]
) -> None:
    """Case 03-D37."""
    service.start_worker("worker", CALLBOARD_ACTORS="odd_errors_jobs")
    pid = pid_of(broker)
    failures = {kind: send(broker, actor, kind, False) for kind in KINDS}
    reasons = {kind: send(broker, actor, kind, True) for kind in as_reasons}
    for kind, message in failures.items():
        error = error_of(broker, message)
        assert error["type"].rpartition(".")[2] == kind.partition(" ")[0], kind
        assert KINDS[kind] in error["message"]
        assert "odd_errors_jobs.py" in error["traceback"]
    for message in reasons.values():
        error = error_of(broker, message)
        assert (error["type"], error["message"]) == ("dramatiq.errors.Retry", "on purpose")
        assert "odd_errors_jobs.py" in error["traceback"]
    started = time.monotonic()
    assert pid_of(broker) == pid
    assert time.monotonic() - started < 1
    assert max(map(len, service.log("worker").splitlines())) < 100_000, "neither a record nor the log holds 50 MB"


def error_of(broker: RedisBroker, message: Message[Any]) -> dict[str, str]:
    eventually(lambda: state_of(broker, message) == "dead", 120)
    record = broker.find_record(message.message_id) or {}
    assert record["attempt"] == "2"
    error = json.loads(record["error"])
    assert len(error["message"]) <= 16 * 1024
    assert len(error["traceback"]) <= 64 * 1024
    return error
