"""`/jobs/{id}/cancel`, `/jobs/{id}/retry` and `PATCH /jobs/{id}`: what an operator does with one job."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from service.api.auditing import audited
from service.api.caller import caller_of
from service.api.job_ids import job_id_of
from service.api.lines import Lines
from service.api.operators import Reason, who
from service.api.requests import MOST_DELAY_SECONDS
from service.broker.dead_letters import DeadLetters, Replay
from service.broker.job_acts import Act, JobActs
from service.errors import InvalidRequest, WrongState, shorten
from service.state.history import History
from service.state.states import STATUS_OF, State, Status

router = APIRouter(tags=["jobs"])

WAITING = "pending, scheduled, waiting or retrying"


class JobActed(BaseModel):
    """The state that a job is in after an act."""

    job_id: UUID
    state: State
    status: Status


class JobCancelled(JobActed):
    """A cancelled job; or one that runs, whose worker is told to stop it, and that ends as cancelled in any case."""

    cancel_requested: Annotated[bool, Field(description="There while it runs: it ends as cancelled.")] = False


class JobMoved(JobActed):
    """A job that waits at another place."""

    priority: int
    run_at: Annotated[datetime | None, Field(description="When it is due; null where it may start now.")]


class Changes(Reason):
    """Another place for a job that waits."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"priority": 0, "delay_seconds": 0}]})

    priority: Annotated[int | None, Field(ge=0, le=9, description="0 goes first, 9 last.")] = None
    run_at: Annotated[AwareDatetime | None, Field(description="ISO 8601 with an offset; not after now: at once.")] = (
        None
    )
    delay_seconds: Annotated[float | None, Field(ge=0, le=MOST_DELAY_SECONDS, description="From now on.")] = None


@router.post("/jobs/{job_id}/cancel", response_model=JobCancelled, response_model_exclude_unset=True)
async def cancel_job(request: Request, response: Response, job_id: str, reason: Reason | None = None) -> JobCancelled:
    """Cancel a job: at once where it waits (200), in a moment where it runs (202). It never starts again."""
    why, by = (reason or Reason()).why, who(request)
    acts = JobActs(request.app.state.broker)
    act = await _act(request, job_id, lambda: acts.cancel(job_id.lower(), by=by, why=why))
    state = State(act.state)
    if not act.done and state is not State.CANCELLED:
        raise WrongState(job_id.lower(), state, "can't be cancelled")
    more: dict[str, Any] = {}
    if state is State.RUNNING:
        response.status_code = 202
        more["cancel_requested"] = True
    return JobCancelled(job_id=UUID(job_id), state=state, status=STATUS_OF[state], **more)


@router.patch("/jobs/{job_id}", response_model=JobMoved)
async def move_job(request: Request, job_id: str, changes: Changes) -> JobMoved:
    """Give a job that waits another priority, another time, or both."""
    _check(changes)
    acts = JobActs(request.app.state.broker)
    delay = changes.delay_seconds
    act = await _act(
        request,
        job_id,
        lambda: acts.reschedule(
            job_id.lower(),
            by=who(request),
            why=changes.why,
            priority=changes.priority,
            delay_ms=None if delay is None else int(delay * 1000),
            run_at=changes.run_at,
        ),
    )
    if not act.done or act.priority is None:
        raise WrongState(job_id.lower(), act.state, f"only one that is {WAITING} can be given another place")
    state = State(act.state)
    return JobMoved(job_id=UUID(job_id), state=state, status=STATUS_OF[state], priority=act.priority, run_at=act.run_at)


@router.post("/jobs/{job_id}/retry", response_model=JobActed, status_code=202)
async def retry_job(request: Request, job_id: str, reason: Reason | None = None) -> JobActed:
    """Put a dead job back on its queue, with no attempt behind it."""
    letters = DeadLetters(request.app.state.broker)
    why, by = (reason or Reason()).why, who(request)

    def retry() -> Act | None:
        letter = letters.get(job_id.lower())
        if letter is None:
            return None
        done = letters.replay(letter, by=by, why=why) is Replay.DONE
        return Act("pending", done=True) if done else None

    act = await _act(request, job_id, retry)
    if not act.done:
        what = "its dead letter is there no more" if act.state == State.DEAD else "only one that is dead can be retried"
        raise WrongState(job_id.lower(), act.state, what)
    return JobActed(job_id=UUID(job_id), state=State.PENDING, status=Status.PENDING)


async def _act(request: Request, job_id: str, do: Callable[[], Act | None]) -> Act:
    """Do an act; where Redis does not know the job, say what the database knows. Raises HTTPException 404."""
    lines: Lines = request.app.state.lines
    history: History = request.app.state.history
    caller = caller_of(request)
    audited(request, count=0, filter={"job_id": shorten(job_id)})
    known = job_id_of(job_id)
    if caller.tenant is not None:
        job = await lines.reads.run(history.find, known)
        if job is None or not caller.may_see(job.tenant):
            raise HTTPException(404, f"Job {shorten(job_id)} not found")
    if act := await lines.sends.run(do):
        audited(request, count=int(act.done), filter={"job_id": str(known)})
        return act
    if found := await lines.reads.run(history.find, known):
        return Act(found.state.value, done=False)
    raise HTTPException(404, f"Job {shorten(job_id)} not found")


def _check(changes: Changes) -> None:
    if changes.run_at is not None and changes.delay_seconds is not None:
        raise InvalidRequest([("delay_seconds", "say either this or run_at")])
    if changes.priority is None and changes.run_at is None and changes.delay_seconds is None:
        raise InvalidRequest([("body", "say priority, run_at or delay_seconds")])
    if changes.run_at is not None and changes.run_at - datetime.now(UTC) > timedelta(seconds=MOST_DELAY_SECONDS):
        raise InvalidRequest([("run_at", f"must be within {MOST_DELAY_SECONDS // 86400} days from now")])
