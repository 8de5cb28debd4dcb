"""Errors as problem details: `application/problem+json` with type, title, status, detail and members of its own."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.errors import BrokerUnavailable, CallboardError, PayloadError, UnknownJobType

RETRY_AFTER_SECONDS = 5


def problem(status: int, code: str, detail: str, headers: dict[str, str] | None = None, **members: Any) -> JSONResponse:
    """Build the answer. `code` is stable and names the kind of problem; `detail` is for people."""
    body = {"type": f"urn:callboard:problem:{code}", "title": HTTPStatus(status).phrase, "status": status}
    return JSONResponse(
        {**body, "detail": detail, **members},
        status_code=status,
        media_type="application/problem+json",
        headers=headers,
    )


def add_problem_handlers(app: FastAPI) -> None:
    """Let every error of an application be answered as a problem."""
    app.add_exception_handler(CallboardError, _callboard_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)


async def _callboard_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CallboardError)
    members: dict[str, Any] = {}
    headers: dict[str, str] | None = None
    if isinstance(error, PayloadError):
        members["errors"] = [
            {"field": f"payload.{path}" if path else "payload", "message": message} for path, message in error.problems
        ]
    if isinstance(error, UnknownJobType):
        members["known_types"] = error.known
    if isinstance(error, BrokerUnavailable):
        members["may_be_stored"] = error.may_be_stored
    if error.status == 503:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return problem(error.status, error.code, str(error), headers, **members)


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"field": ".".join(str(part) for part in item["loc"] if part != "body") or "body", "message": item["msg"]}
        for item in error.errors()
    ]
    detail = "; ".join(f"{item['field']}: {item['message']}" for item in errors)
    return problem(422, "invalid-request", detail, errors=jsonable_encoder(errors))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return problem(error.status_code, code, str(error.detail), dict(error.headers or {}))
