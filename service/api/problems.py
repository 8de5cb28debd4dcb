"""Errors as problem details: `application/problem+json` with type, title, status, detail and members of its own."""

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.errors import (
    PROBLEMS_LISTED,
    BatchUnfinished,
    BrokerUnavailable,
    CallboardError,
    InvalidRequest,
    JobExists,
    MissingScope,
    NotAuthenticated,
    PayloadError,
    TaskRunning,
    TooManyRequests,
    UnknownJobType,
    UnknownTaskType,
    WrongState,
    shorten,
)

RETRY_AFTER_SECONDS = 5


logger = logging.getLogger(__name__)


class Problem(JSONResponse):
    """A problem document. What a caller sent may hold half of a surrogate pair, which UTF-8 can't carry back."""

    media_type = "application/problem+json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def problem(status: int, code: str, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Problem:
    """Build the answer. `code` is stable and names the kind of problem; `detail` is for people."""
    body = {"type": f"urn:callboard:problem:{code}", "title": HTTPStatus(status).phrase, "status": status}
    return Problem({**body, "detail": detail, **members}, status_code=status, headers=headers)


def add_problem_handlers(app: FastAPI) -> None:
    """Let every error of an application be answered as a problem."""
    app.add_exception_handler(CallboardError, answer_of)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, _unexpected_error)


#: What is told of an error besides its text, by its kind.
TOLD: dict[type[CallboardError], tuple[str, ...]] = {
    JobExists: ("job_id",),
    TaskRunning: ("job_id",),
    WrongState: ("job_id", "state"),
    BrokerUnavailable: ("may_be_stored",),
    BatchUnfinished: ("stored", "uncertain"),
    MissingScope: ("scope",),
}


async def answer_of(request: Request, error: Exception) -> Problem:
    """Answer an error of ours."""
    assert isinstance(error, CallboardError)
    if error.status == 500:
        # Of another process's trade, and not told to strangers.
        logger.error("A request failed", exc_info=error)
        return await _unexpected_error(request, error)
    members: dict[str, Any] = {}
    headers: dict[str, str] | None = None
    if isinstance(error, PayloadError):
        members = _listed([(f"payload.{path}" if path else "payload", message) for path, message in error.problems])
    if isinstance(error, InvalidRequest):
        members = _listed(error.problems)
    if isinstance(error, UnknownJobType | UnknownTaskType):
        members["known_types"] = error.known
    for kind, names in TOLD.items():
        if isinstance(error, kind):
            members |= {name: getattr(error, name) for name in names}
    if isinstance(error, NotAuthenticated):
        headers = {"WWW-Authenticate": 'Bearer realm="callboard"'}
    if error.retryable and error.status != 503:
        headers = {"Retry-After": "1"}
    if isinstance(error, TooManyRequests):
        headers = {"Retry-After": str(error.retry_after_seconds)}
    if error.status == 503:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return problem(error.status, error.code, str(error), headers, **members)


async def _invalid_request(request: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    problems = [(".".join(str(part) for part in item["loc"]), str(item["msg"])) for item in error.errors()]
    return await answer_of(request, InvalidRequest(problems))


async def _unexpected_error(request: Request, error: Exception) -> Problem:
    # Starlette raises the error again when this is answered, and uvicorn logs it.
    return problem(500, "internal-error", "The service failed; its log says why")


def _listed(problems: list[tuple[str, str]]) -> dict[str, Any]:
    errors = [{"field": shorten(path), "message": shorten(message)} for path, message in problems[:PROBLEMS_LISTED]]
    left_out = len(problems) - len(errors)
    return {"errors": errors, **({"errors_left_out": left_out} if left_out else {})}


async def http_error(request: Request, error: Exception) -> Problem:
    """Answer an error of Starlette's."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # FastAPI's, of a body that is no text or nested too deeply
        return await answer_of(request, InvalidRequest([("body", "can't be read as JSON")]))
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return problem(error.status_code, code, str(error.detail), dict(error.headers or {}))
