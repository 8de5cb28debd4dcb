"""Logs: text for people, JSON for machines, the same fields in both.

A record's fields travel as `logger.info("Job status updated", extra={"job_id": ..., "status": ...})`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from service.errors import without_middle
from service.settings import Settings, unknown_variables

TRACEBACK_CHARACTERS = 64 * 1024

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}

logger = logging.getLogger(__name__)


def configure_logs(settings: Settings, stream: TextIO | None = None) -> None:
    """Send all of the process's log records to one stream (standard error), in the format that the settings name."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    handler.addFilter(is_wanted)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for name in unknown_variables():
        logger.warning("The variable %s is no setting of Callboard: is it misspelt?", name)


class TextFormatter(logging.Formatter):
    """`12:00:00 INFO    Job status updated job_id=... status=running`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        fields = "".join(f" {key}={_text(value)}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname:<7} {_printable(record.getMessage())}{fields}"
        # Indented, so that no line of an exception's message can pass for a record.
        trace = [f"\n    {_printable(text)}" for text in _traceback(self, record).split("\n") if text]
        return line + "".join(trace)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _traceback(self, record):
            document["traceback"] = trace
        document = {**document, **{key: value for key, value in _fields(record).items() if key not in document}}
        try:
            return json.dumps(document, default=_readable, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            # A field that has no JSON form is still worth reading; a record must not be lost for it.
            return json.dumps({key: _readable(value) for key, value in document.items()})


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _readable(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a foreign __str__ may do anything
        return f"(an unreadable {type(value).__name__})"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _text(value: object) -> str:
    text = _readable(value)
    # Quoting keeps a value with spaces or line breaks on its own line, so that nothing can forge a log record.
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not (record.exc_info and record.exc_info[0]):
        return ""
    try:
        # An error's message may be of any length.
        return without_middle(formatter.formatException(record.exc_info), TRACEBACK_CHARACTERS)
    except Exception:  # noqa: BLE001 - a foreign error may refuse to be looked at; logging must not fail for it
        return f"{record.exc_info[0].__name__} (an error whose traceback can't be read)"


#: Lines of Dramatiq that would be false or harmful here. Results are kept in job state, so none is discarded. And the
#: line of a failure holds the whole payload, secrets included: our own has the job's id, the error and the traceback.
_UNWANTED = ("returned a value that is not None", "Failed to process message %s")


def is_wanted(record: logging.LogRecord) -> bool:
    """Whether a record says anything of a job, and nothing that does not hold here."""
    if not record.name.startswith("dramatiq."):
        return True
    return not any(text in str(record.msg) for text in _UNWANTED)
