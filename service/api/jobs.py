"""`GET /jobs`: read a job."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field

from service.access.scopes import Caller
from service.api.caller import caller_of, check_again
from service.api.job_ids import job_id_of
from service.api.lines import Lines
from service.api.waits import LONGEST_WAIT_SECONDS, Waits
from service.errors import shorten
from service.state.history import History
from service.state.snapshot import Snapshot
from service.state.states import STATUS_OF, State, Status, is_final

router = APIRouter(tags=["jobs"])


class JobError(BaseModel):
    """Why a job failed."""

    type: str
    message: str


class Progress(BaseModel):
    """How far a job says it is, in whatever it counts."""

    done: float
    total: float | None = None
    note: str = ""


class JobView(BaseModel):
    """A job. `result` is there when it has succeeded, `error` when it has failed, `progress` while it runs."""

    job_id: UUID
    type: str
    queue: str
    status: Status
    state: State
    is_terminal: bool
    attempt: Annotated[int, Field(description="The run that is under way or was the last; 0 before the first.")]
    created_at: datetime
    started_at: Annotated[datetime | None, Field(description="When the first attempt started.")]
    completed_at: datetime | None
    result: Any = None
    error: JobError | None = None
    progress: Progress | None = None
    skipped: Annotated[
        bool, Field(description="There when it ended as another of its idempotency key, without a run.")
    ] = False
    priority: Annotated[int | None, Field(description="0 (first) to 9 (last) within its queue.")] = None
    tenant: str | None = None
    key: Annotated[str | None, Field(description="Its idempotency key.")] = None
    parent_id: Annotated[UUID | None, Field(description="The job that has sent it.")] = None
    run_at: Annotated[datetime | None, Field(description="The time that it waits for.")] = None
    worker: Annotated[str | None, Field(description="Who runs it, or has run it last.")] = None
    reason: Annotated[str | None, Field(description="Why it is dead.")] = None
    cancel_requested: Annotated[bool, Field(description="There while it runs and is to end as cancelled.")] = False


@router.get("/jobs/{job_id}", response_model=JobView, response_model_exclude_unset=True)
async def get_job(
    request: Request,
    job_id: str,
    wait: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT_SECONDS, description="Seconds to wait for the job's end before it is shown.")
    ] = 0,
) -> JobView:
    """Read a job as it is now, or as it is when it has ended."""
    history: History = request.app.state.history
    lines: Lines = request.app.state.lines
    waits: Waits = request.app.state.waits
    caller = caller_of(request)
    found = await lines.reads.run(_find, history, job_id_of(job_id), caller)
    if found is None:
        raise HTTPException(404, f"Job {shorten(job_id)} not found")
    if wait and not found.is_terminal:
        await waits.for_end(found.job_id, found.queue, wait, request.receive)
        await check_again(request)
        found = await lines.reads.run(_find, history, found.job_id, caller) or found
    return found


def _find(history: History, job_id: UUID, caller: Caller) -> JobView | None:
    snapshot = history.find(job_id)
    if snapshot is None or not caller.may_see(snapshot.tenant):
        return None  # another tenant's is not there, as one that nobody has sent
    view = view_of(snapshot)
    if snapshot.state is State.RUNNING and (progress := history.progress_of(snapshot)):
        view.progress = Progress.model_validate(progress)
    return view


def view_of(snapshot: Snapshot, *, with_result: bool = True) -> JobView:
    """Show a job, with the members that there are for it only."""
    status = STATUS_OF[snapshot.state]
    outcome: dict[str, Any] = {}
    if status is Status.SUCCEEDED and with_result:
        outcome["result"] = snapshot.result
    elif status is Status.FAILED:
        error = snapshot.error or {"type": "Unknown", "message": ""}
        outcome["error"] = JobError(type=error["type"], message=error["message"])
    if snapshot.skipped:
        outcome["skipped"] = True
    if snapshot.is_cancel_requested:
        outcome["cancel_requested"] = True
    for name in ("priority", "tenant", "key", "parent_id", "reason", "run_at", "worker"):
        if (value := getattr(snapshot, name)) is not None:
            outcome[name] = value
    return JobView(
        job_id=snapshot.job_id,
        type=snapshot.type,
        queue=snapshot.queue,
        status=status,
        state=snapshot.state,
        is_terminal=is_final(snapshot.state),
        attempt=snapshot.attempt,
        created_at=snapshot.created_at,
        started_at=snapshot.started_at,
        completed_at=snapshot.completed_at,
        **outcome,
    )
