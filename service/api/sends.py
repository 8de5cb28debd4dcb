"""`POST /jobs`: send a job."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.api.caller import caller_of
from service.api.direct_route import DirectRoute
from service.api.idempotency_key import key_of
from service.api.lines import Lines
from service.api.requests import JobRequest, read_send
from service.api.sending import Sender
from service.broker.unique_keys import Met
from service.state.states import Status

#: A smaller body is read where it arrives: handing it to a thread costs more than reading it.
LARGE_BYTES = 16 * 1024
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

router = APIRouter(tags=["jobs"], route_class=DirectRoute)

_JOB: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {"type": "string", "maxLength": 255},
            "description": "A repeated request with it gets the first job.",
        }
    ],
    "requestBody": {"required": True, "content": {"application/json": {"schema": JobRequest.model_json_schema()}}},
}


class JobAccepted(BaseModel):
    """The job is stored in its queue."""

    job_id: UUID
    status: Status
    poll_url: str
    replaced: Annotated[
        UUID | None, Field(description="The waiting job with its unique key, whose place it has taken.")
    ] = None
    rescheduled: Annotated[
        UUID | None, Field(description="The waiting job with its unique key, which is due in its place: `job_id` too.")
    ] = None


@router.post("/jobs", status_code=202, response_model=JobAccepted, openapi_extra=_JOB)
async def send_job(request: Request) -> JSONResponse:
    """Check a job, store it in its queue, and say where it can be followed."""
    state = request.app.state
    lines: Lines = state.lines
    sender: Sender = state.sender
    body = await request.body()
    content_type, caller = request.headers.get("content-type", ""), caller_of(request)
    key = key_of(request, "POST /jobs", caller)
    if len(body) > LARGE_BYTES:
        send = await lines.checks.run(read_send, state.broker, content_type, body, caller)
    else:
        send = read_send(state.broker, content_type, body, caller)
    if key is None:
        met = await sender.send(send)
        job_id = met.job_id if met and met.how == "rescheduled" else send.message.message_id
        return _accepted(job_id, met=met)
    job_id, is_replayed = await lines.sends.run(sender.send_for_key, send, key)
    return _accepted(str(job_id), {"Idempotency-Replayed": "true"} if is_replayed else NO_HEADERS)


def _accepted(job_id: str, more_headers: Mapping[str, str] = NO_HEADERS, met: Met | None = None) -> JSONResponse:
    # JobAccepted by hand: checking the answer against its model would cost as much as the send.
    poll_url = f"/jobs/{job_id}"
    body = {"job_id": job_id, "status": Status.PENDING.value, "poll_url": poll_url}
    if met:
        body[met.how] = met.job_id
    return JSONResponse(body, status_code=202, headers={"Location": poll_url, **more_headers})
