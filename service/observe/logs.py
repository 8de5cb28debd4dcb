"""Logs: text for people, JSON for machines, the same fields in both.

A record's fields travel as `logger.info("Job status updated", extra={"job_id": ..., "status": ...})`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from service.settings import Settings, unknown_variables

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}

logger = logging.getLogger(__name__)


def configure_logs(settings: Settings, stream: TextIO | None = None) -> None:
    """Send all of the process's log records to one stream (standard error), in the format that the settings name."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    handler.addFilter(_is_not_about_discarded_results)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for name in unknown_variables():
        logger.warning("The variable %s is no setting of Callboard: is it misspelt?", name)


class TextFormatter(logging.Formatter):
    """`12:00:00 INFO    Job status updated job_id=... status=running`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        fields = "".join(f" {key}={_text(value)}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname:<7} {record.getMessage()}{fields}"
        return line + _traceback(self, record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if trace := _traceback(self, record):
            document["traceback"] = trace.lstrip("\n")
        return json.dumps(document, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _text(value: object) -> str:
    text = str(value)
    # Quoting keeps a value with spaces or line breaks on its own line, so that nothing can forge a log record.
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0]:
        return "\n" + formatter.formatException(record.exc_info)
    return ""


def _is_not_about_discarded_results(record: logging.LogRecord) -> bool:
    # Dramatiq warns that a result was discarded when its own Results middleware is not there; ours are kept in job
    # state, so the line would be false, and there would be one for each job.
    return not (record.name.startswith("dramatiq.") and "returned a value that is not None" in str(record.msg))
