"""`GET /jobs/{id}/timeline`: all that has happened to a job, and whom it belongs to."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from service.access.scopes import Caller
from service.api.caller import caller_of
from service.api.job_ids import job_id_of
from service.api.jobs import JobError, JobView, view_of
from service.api.lines import Lines
from service.broker import RedisBroker
from service.errors import shorten
from service.payload import MASK, masked
from service.state.history import History, Story
from service.state.states import State, is_final
from service.state.step import Step

MOST_CHILDREN = 100

router = APIRouter(tags=["jobs"])


class MomentView(BaseModel):
    """One thing that happened. `state` is null for progress and lines of the log, whose `data` says it."""

    at: datetime
    kind: Annotated[str, Field(description="sent, started, waiting, replayed, settled, progress or log, among others")]
    state: State | None
    attempt: int
    worker: str | None = None
    run_at: datetime | None = None
    reason: str | None = None
    error: JobError | None = None
    data: Any = None


class Wait(BaseModel):
    """A time in which the job could not run. `ended_at` is null while it lasts."""

    what_for: Annotated[str, Field(description="worker, time, retry, or key: another job with its idempotency key")]
    key: str | None = None
    since: datetime
    ended_at: datetime | None
    seconds: Annotated[float | None, Field(description="How long; null while it lasts.")]


class Child(BaseModel):
    """A job that this one has sent."""

    job_id: UUID
    type: str
    state: State


class Timeline(BaseModel):
    """A job and its story, in order. `payload` has personal fields masked, and is null where it is not known."""

    job: JobView
    payload: dict[str, Any] | None
    events: list[MomentView]
    waits: list[Wait]
    parent_id: UUID | None
    children: Annotated[list[Child], Field(description="Up to 100, the newest first.")]


@router.get("/jobs/{job_id}/timeline", response_model=Timeline, response_model_exclude_unset=True)
async def get_timeline(request: Request, job_id: str) -> Timeline:
    """Show every step of a job, each attempt with its worker, what it has said, and what it has waited for."""
    history: History = request.app.state.history
    lines: Lines = request.app.state.lines
    found = await lines.reads.run(_find, history, job_id_of(job_id), caller_of(request))
    if found is None:
        raise HTTPException(404, f"Job {shorten(job_id)} not found")
    return _timeline(request.app.state.broker, found)


def _find(history: History, job_id: UUID, caller: Caller) -> Story | None:
    snapshot = history.find(job_id)
    if snapshot is None or not caller.may_see(snapshot.tenant):
        return None
    return history.story_of(snapshot, MOST_CHILDREN, caller.tenant)


def _timeline(broker: RedisBroker, story: Story) -> Timeline:
    return Timeline(
        job=view_of(story.job),
        payload=_payload_of(broker, story),
        events=[_view(step) for step in story.steps],
        waits=waits_of(story.steps),
        parent_id=story.job.parent_id,
        children=[Child(job_id=child.job_id, type=child.type, state=child.state) for child in story.children],
    )


def _payload_of(broker: RedisBroker, story: Story) -> dict[str, Any] | None:
    kwargs: Any = (story.message or {}).get("kwargs")
    if not isinstance(kwargs, dict):
        return None
    if not broker.is_named(story.job.type):
        return dict.fromkeys(cast("dict[str, Any]", kwargs), MASK)  # nobody here knows what of it is personal
    return masked(broker.get_actor(story.job.type), cast("dict[str, Any]", kwargs))


def _view(step: Step) -> MomentView:
    known: dict[str, Any] = {
        name: value for name in ("worker", "run_at", "reason", "data") if (value := getattr(step, name)) is not None
    }
    if step.error is not None:
        known["error"] = JobError(type=step.error.get("type", ""), message=step.error.get("message", ""))
    return MomentView(at=step.at, kind=step.kind, state=step.state, attempt=step.attempt, **known)


def waits_of(steps: Sequence[Step]) -> list[Wait]:
    """Return what a job has waited for, and how long, from what has happened to it."""
    moves = [step for step in steps if step.state is not None]
    waits: list[Wait] = []
    for step, following in pairwise([*moves, None]):
        if step is None or step.state is State.RUNNING or is_final(cast("State", step.state)):
            continue
        ended = None if following is None else following.at
        due = step.run_at
        if step.state is State.WAITING:
            waits.append(_wait("key", step.at, ended, step.key))
        elif due is not None and due > step.at:
            # Until its time, and from then on for a worker.
            what_for = "retry" if step.state is State.RETRYING else "time"
            waits.append(_wait(what_for, step.at, due if ended is None or ended > due else ended))
            if ended is not None and ended > due:
                waits.append(_wait("worker", due, ended))
        else:
            waits.append(_wait("worker", step.at, ended))
    return waits


def _wait(what_for: str, since: datetime, ended: datetime | None, key: str | None = None) -> Wait:
    seconds = None if ended is None else max((ended - since).total_seconds(), 0.0)
    return Wait(what_for=what_for, key=key, since=since, ended_at=ended, seconds=seconds)
