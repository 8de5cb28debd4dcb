"""`/jobs`: send a job, read a job."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from dramatiq.errors import ActorNotFound
from dramatiq.message import Message
from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from service.broker import RedisBroker
from service.errors import PayloadError, UnknownJobType
from service.job import Job
from service.state.history import History
from service.state.snapshot import Snapshot
from service.state.states import STATUS_OF, State, Status, is_final

router = APIRouter(tags=["jobs"])


class JobRequest(BaseModel):
    """A job to be sent."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "type": "email.send",
                    "payload": {
                        "to": "ada@example.org",
                        "subject": "Welcome",
                        "template_id": "welcome",
                        "context": {"name": "Ada"},
                    },
                }
            ]
        },
    )

    type: Annotated[str, Field(description="The actor's name, or an alias of it.")]
    payload: Annotated[dict[str, Any], Field(description="What the actor is called with.")] = {}
    ref_id: Annotated[
        str | None, Field(description="Short for the payload's own `ref_id`, for actors whose payload has one.")
    ] = None


class JobAccepted(BaseModel):
    """The job is stored in its queue."""

    job_id: UUID
    status: Status
    poll_url: str


class JobError(BaseModel):
    """Why a job failed."""

    type: str
    message: str


class JobView(BaseModel):
    """A job. `result` is there when it has succeeded, `error` when it has failed; both are left out otherwise."""

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


@router.post("/jobs", status_code=202, response_model=JobAccepted)
def send_job(request: Request, response: Response, body: JobRequest) -> JobAccepted:
    """Check a job, store it in its queue, and say where it can be followed."""
    broker: RedisBroker = request.app.state.broker
    message = _message_for(broker, body)
    broker.enqueue(message)
    poll_url = f"/jobs/{message.message_id}"
    response.headers["Location"] = poll_url
    return JobAccepted(job_id=UUID(message.message_id), status=Status.PENDING, poll_url=poll_url)


@router.get("/jobs/{job_id}", response_model=JobView, response_model_exclude_unset=True)
def get_job(request: Request, job_id: str) -> JobView:
    """Read a job as it is now."""
    history: History = request.app.state.history
    snapshot = history.find(UUID(job_id)) if _is_uuid(job_id) else None
    if snapshot is None:
        raise HTTPException(404, f"Job {job_id} not found")
    return _view(snapshot)


def _message_for(broker: RedisBroker, body: JobRequest) -> Message[Any]:
    try:
        actor = broker.get_actor(body.type)
    except ActorNotFound:
        raise UnknownJobType(body.type, broker.known_types) from None
    payload = _with_ref_id(body, actor)
    return actor.message_from_json(payload) if isinstance(actor, Job) else actor.message(**payload)


def _with_ref_id(body: JobRequest, actor: Any) -> dict[str, Any]:
    if body.ref_id is None:
        return body.payload
    if isinstance(actor, Job) and "ref_id" not in actor.contract.model.model_fields:
        raise PayloadError(actor.actor_name, [("ref_id", "this type of job takes no ref_id")])
    if body.payload.get("ref_id", body.ref_id) != body.ref_id:
        raise PayloadError(actor.actor_name, [("ref_id", "differs from the ref_id beside the payload")])
    return {**body.payload, "ref_id": body.ref_id}


def _view(snapshot: Snapshot) -> JobView:
    status = STATUS_OF[snapshot.state]
    outcome: dict[str, Any] = {}
    if status is Status.SUCCEEDED:
        outcome["result"] = snapshot.result
    elif status is Status.FAILED:
        error = snapshot.error or {"type": "Unknown", "message": ""}
        outcome["error"] = JobError(type=error["type"], message=error["message"])
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


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
