"""`GET /jobs/{id}/events`: what happens to a job, as server-sent events, until it has ended."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from service.api.caller import caller_of, check_again
from service.api.followers import Followers
from service.api.job_ids import job_id_of
from service.api.lines import Lines
from service.errors import CallboardError, InvalidRequest, shorten
from service.state.following import Followed
from service.state.history import History
from service.state.states import STATUS_OF, is_final
from service.state.step import NOTHING_SEEN, Mark, Step

RETRY_MS = 2000

router = APIRouter(tags=["jobs"])


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The job has ended, and the client has seen that: it need not come again."},
    },
)
async def follow_job(
    request: Request,
    job_id: str,
    last_event_id: Annotated[str | None, Header(description="The id of the last event that arrived before.")] = None,
) -> Response:
    """Follow a job: `state`, `progress` and `log` events, those that have happened first; ends when the job has."""
    followers: Followers = request.app.state.followers
    seen = NOTHING_SEEN if last_event_id is None else _mark(last_event_id)
    history: History = request.app.state.history
    lines: Lines = request.app.state.lines
    found = await lines.reads.run(history.find, job_id_of(job_id))
    if found is None or not caller_of(request).may_see(found.tenant):
        raise HTTPException(404, f"Job {shorten(job_id)} not found")
    job = Followed(found.created_at, found.job_id)
    has_ended = is_final(found.state) and seen.sequence >= found.sequence
    if has_ended and not await lines.reads.run(history.steps_since, {job: seen}):
        return Response(status_code=204)  # else browsers come again and again
    followers.check()
    # Not to be kept by anybody on the way, nor collected before it is passed on.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    events = _events(request, followers, job, seen, has_ended=has_ended)
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _events(
    request: Request, followers: Followers, job: Followed, seen: Mark, *, has_ended: bool
) -> AsyncGenerator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    async with aclosing(followers.follow(job, seen, has_ended=has_ended)) as several:
        async for steps in several:
            try:
                await check_again(request)
            except CallboardError:
                return  # the client comes again, and is told why
            yield "".join(_written(job.job_id, step) for step in steps) or ": nothing new\n\n"


def _written(job_id: UUID, step: Step) -> str:
    kind, told = "state", _told(job_id, step)
    if step.state is None:
        kind = step.kind
        told["data"] = step.data
    return f"id: {step.mark}\nevent: {kind}\ndata: {json.dumps(told, ensure_ascii=False, default=str)}\n\n"


def _told(job_id: UUID, step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {"job_id": str(job_id), "at": step.at.isoformat(), "attempt": step.attempt}
    if step.state is not None:
        told |= {"state": step.state.value, "status": STATUS_OF[step.state].value}
    more = {"worker": step.worker, "run_at": step.run_at and step.run_at.isoformat(), "reason": step.reason}
    told |= {name: value for name, value in more.items() if value is not None}
    if step.error is not None:
        told["error"] = {name: step.error.get(name, "") for name in ("type", "message")}
    return told


def _mark(written: str) -> Mark:
    try:
        return Mark.parse(written)
    except ValueError:
        raise InvalidRequest([("Last-Event-ID", "must be the id of an event of this stream, or absent")]) from None
