"""`POST /jobs/batch`: send many jobs at once. All of them are checked before any is stored."""

from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.access.scopes import Caller
from service.api.caller import caller_of
from service.api.direct_route import DirectRoute
from service.api.group_sends import Send
from service.api.lines import Lines
from service.api.requests import JobRequest, job_of, read_object, send_for
from service.api.sending import Sender
from service.broker import RedisBroker
from service.broker.unique_keys import Met
from service.errors import (
    PROBLEMS_LISTED,
    BatchUnfinished,
    BrokerUnavailable,
    CallboardError,
    InvalidRequest,
    JobExists,
    PayloadError,
)

MOST_JOBS = 10_000

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

_BATCH: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["jobs"],
                    "additionalProperties": False,
                    "properties": {
                        "jobs": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": MOST_JOBS,
                            "items": JobRequest.model_json_schema(),
                        }
                    },
                }
            }
        },
    }
}


class Refused(BaseModel):
    """A job that was not stored, by its index in the request. `job_id` is the one that has its unique key."""

    index: int
    code: str
    detail: str
    job_id: UUID | None = None


class BatchAccepted(BaseModel):
    """The jobs are stored in their queues: their ids in the order of the request, null for one that was refused."""

    accepted: int
    job_ids: list[UUID | None]
    refused: list[Refused] = []


@router.post("/jobs/batch", status_code=202, response_model=BatchAccepted, openapi_extra=_BATCH)
async def send_batch(request: Request) -> JSONResponse:
    """Check up to 10,000 jobs, and store them if nothing is wrong with any."""
    state = request.app.state
    lines: Lines = state.lines
    if "idempotency-key" in request.headers:
        raise InvalidRequest([("Idempotency-Key", "is for a single job: give the jobs of a batch keys of their actor")])
    body = await request.body()
    content_type = request.headers.get("content-type", "")
    sends = await lines.checks.run(_read, state.broker, content_type, body, caller_of(request))
    return JSONResponse(await lines.sends.run(_send, state.sender, sends), status_code=202)


def _read(broker: RedisBroker, content_type: str, body: bytes, caller: Caller) -> list[Send]:
    fields = read_object(content_type, body)
    if unknown := [(name, "Extra inputs are not permitted") for name in fields if name != "jobs"]:
        raise InvalidRequest(unknown)
    jobs: Any = fields.get("jobs")
    if not isinstance(jobs, list) or not 1 <= len(cast("list[object]", jobs)) <= MOST_JOBS:
        raise InvalidRequest([("jobs", f"must be a list of 1 to {MOST_JOBS} jobs")])
    sends: list[Send] = []
    problems: list[tuple[str, str]] = []
    for number, job in enumerate(cast("list[object]", jobs)):
        try:
            sends.append(send_for(broker, job_of(job), caller))
        except CallboardError as error:
            problems += [(f"jobs.{number}.{field}", text) for field, text in _problems_of(error)]
            if len(problems) > PROBLEMS_LISTED:
                break  # more than are told of
    if problems:
        raise InvalidRequest(problems)
    return sends


def _problems_of(error: CallboardError) -> list[tuple[str, str]]:
    if isinstance(error, PayloadError):
        return [(f"payload.{path}" if path else "payload", text) for path, text in error.problems]
    return error.problems if isinstance(error, InvalidRequest) else [("type", str(error))]


def _send(sender: Sender, sends: list[Send]) -> dict[str, Any]:
    outcomes = [_ended(send, answer) for send, answer in zip(sends, sender.send_group(sends), strict=True)]
    outages = [error for _, error in outcomes if isinstance(error, BrokerUnavailable)]
    stored = [job_id for job_id, error in outcomes if error is None]
    if outages:
        if not stored:
            raise outages[0]
        raise BatchUnfinished(len(outages), len(sends), outages[0], stored, [*_uncertain(outcomes)])
    refused: list[dict[str, Any]] = []
    for index, (_, error) in enumerate(outcomes):
        if isinstance(error, CallboardError):
            about = {"job_id": error.job_id} if isinstance(error, JobExists) else {}
            refused.append({"index": index, "code": error.code, "detail": str(error), **about})
        elif error is not None:
            raise error
    job_ids = [job_id if error is None else None for job_id, error in outcomes]
    return {"accepted": len(stored), "job_ids": job_ids, **({"refused": refused} if refused else {})}


def _ended(send: Send, answer: Exception | Met | None) -> tuple[str, Exception | None]:
    """Return the id of the job that there is now, and what went wrong."""
    if isinstance(answer, Met):
        return (answer.job_id if answer.how == "rescheduled" else send.message.message_id), None
    return send.message.message_id, answer


def _uncertain(outcomes: list[tuple[str, Exception | None]]) -> Iterator[str]:
    for job_id, error in outcomes:
        if isinstance(error, BrokerUnavailable) and error.may_be_stored:
            yield job_id
