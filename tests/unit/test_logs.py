import io
import json
import logging
import re

import pytest

from service.observe.logs import configure_logs
from service.settings import load_settings

RECORD = re.compile(r"^\d\d:\d\d:\d\d [A-Z]+ ")


class Unreadable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.fixture(autouse=True)
def root_logger() -> None:
    # Taken off first: `configure_logs` closes what it finds, and pytest's own handlers are still needed afterwards.
    logging.getLogger().handlers[:] = []


@pytest.fixture
def log(monkeypatch):
    def configured(log_format, level="INFO"):
        monkeypatch.setenv("CALLBOARD_LOG_FORMAT", log_format)
        monkeypatch.setenv("CALLBOARD_LOG_LEVEL", level)
        stream = io.StringIO()
        configure_logs(load_settings(), stream)
        return logging.getLogger("callboard.test"), stream

    return configured


def test_text_is_one_line_with_the_fields_at_its_end(log):
    logger, stream = log("text")
    logger.info("Job status updated", extra={"job_id": "7", "status": "running", "note": "two words", "empty": ""})
    assert RECORD.match(stream.getvalue())
    assert stream.getvalue().endswith('INFO    Job status updated job_id=7 status=running note="two words" empty=""\n')


def test_json_is_one_object_a_line_with_the_same_fields(log):
    logger, stream = log("json")
    logger.warning("Job %s", "ended", extra={"job_id": "7", "attempt": 2, "delay": 0.5})
    document = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", document.pop("time"))
    assert document == {
        "level": "WARNING",
        "logger": "callboard.test",
        "message": "Job ended",
        "job_id": "7",
        "attempt": 2,
        "delay": 0.5,
    }


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K"])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_value_can_forge_a_record(log, log_format, break_):
    forged = f"x{break_}12:00:00 INFO    Job status updated status=succeeded"
    logger, stream = log(log_format)
    logger.info("sent to %s", forged, extra={"to": forged})
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_exception_can_forge_a_record(log, log_format):
    logger, stream = log(log_format)
    try:
        raise ValueError("x\n12:00:00 INFO    Job status updated\r12:00:00 INFO    again")
    except ValueError:
        logger.exception("failed")
    lines = stream.getvalue().splitlines()
    assert [bool(RECORD.match(line)) for line in lines[1:]] == [False] * (len(lines) - 1)
    if log_format == "json":
        (line,) = lines
        assert "ValueError: x" in json.loads(line)["traceback"]
    else:
        assert any("ValueError: x" in line for line in lines)
        assert any("Traceback (most recent call last)" in line for line in lines)


@pytest.mark.parametrize(
    "value",
    [
        {b"state": b"pending", 1: {(1, 2): "key"}},
        b"\xff",
        float("nan"),
        [float("inf")],
        Unreadable(),
        {"deep": [Unreadable()]},
        "half \ud800",
        10**100,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_record_is_lost_for_the_type_of_a_value(log, capsys, log_format, value):
    logger, stream = log(log_format)
    logger.error("An event can't be read", extra={"fields": value})
    assert "An event can't be read" in stream.getvalue()
    stream.getvalue().encode()
    assert "Logging error" not in capsys.readouterr().err
    if log_format == "json":
        json.loads(stream.getvalue(), parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_a_field_can_not_pass_for_the_records_own(log):
    logger, stream = log("json")
    logger.info("real", extra={"level": "ERROR", "time": "never", "logger": "other"})
    document = json.loads(stream.getvalue())
    assert (document["level"], document["logger"]) == ("INFO", "callboard.test")
    assert document["time"] != "never"


def test_the_level_is_the_least_that_is_logged(log):
    logger, stream = log("text", level="warning")
    logger.info("quiet")
    logger.warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_a_misspelt_variable_is_warned_of(log, monkeypatch):
    monkeypatch.setenv("CALLBOARD_LEASE_SECOND", "30")
    _, stream = log("text")
    assert "WARNING The variable CALLBOARD_LEASE_SECOND is no setting of Callboard" in stream.getvalue()


def test_the_line_of_dramatiq_about_discarded_results_is_left_out(log):
    _, stream = log("text")
    logging.getLogger("dramatiq.worker").warning("Actor returned a value that is not None, but ...")
    logging.getLogger("dramatiq.worker").warning("Something else")
    assert stream.getvalue().count("\n") == 1


def test_dramatiqs_line_of_a_failure_which_holds_the_payload_is_not_logged():
    stream = io.StringIO()
    configure_logs(load_settings(), stream)
    logging.getLogger("dramatiq.worker.WorkerThread").error(
        "Failed to process message %s with unhandled exception.", "reset(token='SECRET')"
    )
    logging.getLogger("dramatiq.worker.WorkerThread").error("Something else")
    assert "SECRET" not in stream.getvalue()
    assert "Something else" in stream.getvalue()


class AnswersNothing(Exception):
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_error_is_too_long_or_too_odd_to_be_logged(log, log_format):
    logger, stream = log(log_format)
    for error in (ValueError("begin" + "é" * 1_000_000 + "end"), AnswersNothing("at all")):
        try:
            raise error
        except Exception:
            logger.exception("The job failed", extra={"job_id": "7"})
    assert len(stream.getvalue()) < 500_000
    for word in ("test_logs.py", "begin", "the middle is left out", "end", "AnswersNothing (an error whose traceback"):
        assert word in stream.getvalue()
    assert stream.getvalue().count("The job failed") == 2
