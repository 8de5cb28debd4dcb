import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from service.state.snapshot import Snapshot
from service.state.states import State

JOB_ID = "0192f0c1-2345-7000-8000-000000000001"
EVENT = {
    "job_id": JOB_ID,
    "seq": "1",
    "type": "email.send",
    "queue": "email",
    "state": "pending",
    "created_at": "1700000000123",
    "at": "1700000000123",
}


def event(**changes):
    return {**EVENT, **changes}


def test_the_first_event_of_a_job():
    at = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert Snapshot.from_event(EVENT) == Snapshot(UUID(JOB_ID), 1, "email.send", "email", State.PENDING, 0, at, at)


def test_a_success_keeps_its_result_and_no_error_of_the_attempts_before():
    snapshot = Snapshot.from_event(
        event(
            seq="5",
            state="succeeded",
            attempt="2",
            started_at="1700000001000",
            completed_at="1700000002000",
            result='{"b": [1, null], "a": "ä"}',
            error='{"type": "ValueError"}',
        )
    )
    assert list(snapshot.result) == ["b", "a"]
    assert (snapshot.error, snapshot.attempt, snapshot.sequence) == (None, 2, 5)
    assert snapshot.completed_at == datetime(2023, 11, 14, 22, 13, 22, tzinfo=UTC)


def test_the_highest_sequence_that_the_database_holds_is_taken():
    assert Snapshot.from_event(event(seq=str(2**63 - 1))).sequence == 2**63 - 1


@pytest.mark.parametrize("state", ["retrying", "dead", "running"])
def test_a_failure_keeps_its_error(state):
    error = {"type": "ValueError", "message": "no", "traceback": "..."}
    assert Snapshot.from_event(event(state=state, error=json.dumps(error))).error == error


@pytest.mark.parametrize("missing", EVENT)
def test_an_event_that_lacks_a_field_is_refused(missing):
    with pytest.raises(KeyError):
        Snapshot.from_event({key: value for key, value in EVENT.items() if key != missing})


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "1"},
        {"seq": "x"},
        {"seq": "-1"},
        {"seq": str(2**63)},
        {"attempt": str(2**31)},
        {"state": "lost"},
        {"at": "soon"},
        {"at": "9" * 30},
        {"created_at": "-" + "9" * 17},
        {"type": "a\x00b"},
        {"queue": "a\x00b"},
        {"result": "{"},
        {"result": "NaN"},
        {"result": '{"a": [-Infinity]}'},
        {"result": "[" * 100_000},
        {"result": "9" * 5000},
        {"state": "dead", "error": '"text"'},
        {"state": "dead", "error": "null"},
    ],
    ids=str,
)
def test_what_the_database_could_not_hold_is_refused_with_an_error_that_the_projector_expects(changes):
    with pytest.raises((KeyError, ValueError)):
        Snapshot.from_event(event(**changes))


def test_texts_that_the_database_could_not_hold_are_spelt_out():
    snapshot = Snapshot.from_event(
        event(
            state="dead", result='{"a\\u0000": "\\ud800"}', error='{"type": "E", "message": "\\u0000", "traceback": ""}'
        )
    )
    assert snapshot.result == {"a\\u0000": "\\ud800"}
    assert snapshot.error == {"type": "E", "message": "\\u0000", "traceback": ""}
