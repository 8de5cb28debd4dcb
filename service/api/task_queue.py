"""`/api/task-queue`: tasks of agents."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.api.lines import Lines
from service.api.operators import who
from service.errors import shorten
from service.state.task_states import TaskStatus
from service.tasks.queue import TaskQueue
from service.tasks.task import DEFAULT_PRIORITY, Task

router = APIRouter(prefix="/api/task-queue", tags=["task queue"])


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not hold NUL")
    return text


Type = Annotated[
    str,
    Field(min_length=1, max_length=200, description="The name of an actor that takes tasks, or an alias of it."),
    AfterValidator(_storable),
]
Description = Annotated[
    str,
    Field(max_length=200_000, description="What is to be done. The actor is called with it."),
    AfterValidator(_storable),
]
Priority = Annotated[
    int, Field(ge=1, le=10, strict=True, description="1 (first) to 10; up to 3 goes to the queue `high-priority`.")
]


class TaskRequest(BaseModel):
    """A task to be stored."""

    model_config = ConfigDict(extra="forbid")

    task_type: Type
    description: Description = ""
    priority: Priority = DEFAULT_PRIORITY


class TaskChange(BaseModel):
    """What is to change of a task. While a job works on it, it can only be cancelled. What is left out stays."""

    model_config = ConfigDict(extra="forbid")

    task_type: Type = ""
    description: Description = ""
    priority: Priority = DEFAULT_PRIORITY
    status: Annotated[
        TaskStatus, Field(description="`cancelled` of what has not ended; `pending` puts back what has ended.")
    ] = TaskStatus.PENDING


class TaskView(BaseModel):
    """A task. `result` is there when it is completed, `error_message` when it has failed."""

    model_config = ConfigDict(from_attributes=True)

    task_id: UUID
    task_type: str
    description: str
    priority: int
    status: TaskStatus
    result: Any
    error_message: str | None
    job_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None


class TaskPage(BaseModel):
    """Some tasks, the newest first."""

    tasks: list[TaskView]
    next_cursor: Annotated[str | None, Field(description="For the next page; null on the last.")]


class TaskQueued(BaseModel):
    """A task is in progress, and its job is sent, or will be as soon as Redis takes it."""

    status: Literal["queued"] = "queued"
    job_id: UUID
    task_id: UUID


@router.post("", status_code=201, response_model=TaskView)
async def create_task(request: Request, task: TaskRequest) -> TaskView:
    """Store a task. It waits until it is executed."""
    made = await _run(request, _queue(request).create, task.task_type, task.description, task.priority)
    return TaskView.model_validate(made)


@router.get("", response_model=TaskPage)
async def list_tasks(
    request: Request,
    status: TaskStatus | None = None,
    task_type: Annotated[
        str | None, Query(max_length=200), AfterValidator(lambda text: text and _storable(text))
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> TaskPage:
    """List tasks, the newest first."""
    page = await _run(request, _queue(request).page, status, task_type, cursor, limit)
    return TaskPage(tasks=[TaskView.model_validate(task) for task in page.tasks], next_cursor=page.next_cursor)


@router.get("/{task_id}", response_model=TaskView)
async def get_task(request: Request, task_id: str) -> TaskView:
    """Read a task."""
    return _found(await _run(request, _queue(request).find, _id(task_id)), task_id)


@router.patch("/{task_id}", response_model=TaskView)
@router.put("/{task_id}", response_model=TaskView, include_in_schema=False)
async def change_task(request: Request, response: Response, task_id: str, change: TaskChange) -> TaskView:
    """Change a task that is not in progress, or cancel one: 202 where its job runs, and ends in a moment."""
    wanted = change.model_dump(exclude_unset=True)
    task = _found(await _run(request, _queue(request).change, _id(task_id), wanted, who(request)), task_id)
    if wanted.get("status") is TaskStatus.CANCELLED and task.status is TaskStatus.IN_PROGRESS:
        response.status_code = 202
    return task


@router.delete("/{task_id}", status_code=204)
async def delete_task(request: Request, task_id: str) -> Response:
    """Delete a task. The job of one in progress is cancelled."""
    if not await _run(request, _queue(request).delete, _id(task_id), who(request)):
        raise _unknown(task_id)
    return Response(status_code=204)


@router.post("/{task_id}/execute", response_model=TaskQueued)
async def execute_task(request: Request, task_id: str) -> TaskQueued:
    """Send the job that carries a task out. A task that has ended is carried out again, by a new job."""
    known = _id(task_id)
    job_id = await _run(request, _queue(request).execute, known)
    if job_id is None:
        raise _unknown(task_id)
    return TaskQueued(job_id=job_id, task_id=known)


def _queue(request: Request) -> TaskQueue:
    return request.app.state.tasks


async def _run(request: Request, function: Any, *arguments: Any) -> Any:
    lines: Lines = request.app.state.lines
    return await lines.tasks.run(function, *arguments)


def _id(task_id: str) -> UUID:
    try:
        return UUID(task_id)
    except ValueError:
        raise _unknown(task_id) from None


def _found(task: Task | None, task_id: str) -> TaskView:
    if task is None:
        raise _unknown(task_id)
    return TaskView.model_validate(task)


def _unknown(task_id: str) -> HTTPException:
    return HTTPException(404, f"Task {shorten(task_id)} not found")
