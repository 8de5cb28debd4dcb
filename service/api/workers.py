"""`/workers`: the live worker processes, and what each runs."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from service.api.lines import Lines
from service.broker.workers import live_workers

router = APIRouter(tags=["workers"])


class RunningJobView(BaseModel):
    """A job in a worker's hands."""

    model_config = ConfigDict(from_attributes=True)

    job_id: str
    type: str
    queue: str
    attempt: int
    since: datetime


class WorkerView(BaseModel):
    """A worker process, as it was at `seen_at`: 15 seconds ago at most where it lives, 50 where it has just died."""

    model_config = ConfigDict(from_attributes=True)

    worker_id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    threads: int
    started_at: datetime
    seen_at: datetime
    draining: Annotated[bool, Field(description="It is stopping: it starts nothing more.")]
    running: int
    jobs: Annotated[list[RunningJobView], Field(description="A hundred of those that it runs, the longest first.")]


class Workers(BaseModel):
    """All live workers, by name."""

    workers: list[WorkerView]


@router.get("/workers", response_model=Workers)
async def list_workers(request: Request) -> Workers:
    """List the live workers."""
    lines: Lines = request.app.state.lines
    found = await lines.sends.run(live_workers, request.app.state.broker)
    return Workers(workers=[WorkerView.model_validate(worker) for worker in found])
