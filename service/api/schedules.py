"""`/schedules`: look at schedules, make, change, pause and run them."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from service.api.caller import caller_of
from service.api.lines import Lines
from service.schedules.book import Page, ScheduleBook
from service.schedules.document import Plan, ScheduleDocument
from service.schedules.zones import moment_of, zone_named

router = APIRouter(tags=["schedules"])

MOST_TIMES = 100
Count = Annotated[int, Query(alias="next", ge=0, le=MOST_TIMES, description="How many due times to show.")]


class DueTime(BaseModel):
    """A due time in UTC and on the wall, with the offset that holds then."""

    at: datetime
    local: datetime


class RunView(BaseModel):
    """A job of a schedule. `kind` is due, missed (made up for) or by-hand."""

    job_id: UUID
    scheduled_for: datetime
    kind: str
    poll_url: str


class PauseView(BaseModel):
    """Who has paused a schedule, why, and when."""

    by: str
    why: str
    at: datetime


class ScheduleView(BaseModel):
    """A schedule as it is now. Counters count since it was first seen."""

    name: str
    source: Literal["code", "stored"]
    state: Literal["active", "paused", "ended", "broken"]
    schedule: Annotated[dict[str, Any], Field(description="As `POST /schedules` takes it.")]
    timezone: str
    next_times: list[DueTime]
    last_run: RunView | None
    paused: PauseView | None
    sent: int
    missed: Annotated[int, Field(description="Due times that were not met in time.")]
    caught_up: Annotated[int, Field(description="How many of them were made up for.")]
    overlapped: Annotated[int, Field(description="Due times that were skipped, since the job before had not ended.")]
    failures: Annotated[int, Field(description="Jobs in a row that failed, where it is to pause after some.")]
    last_error: str | None
    runs: list[RunView] | SkipJsonSchema[None] = None


class Schedules(BaseModel):
    """All schedules, by name."""

    schedules: list[ScheduleView]


class Started(BaseModel):
    """The job is stored in its queue."""

    job_id: UUID
    poll_url: str


class Preview(BaseModel):
    """When a schedule would be due."""

    timezone: str
    next_times: list[DueTime]


class PreviewRequest(Plan):
    """A plan, and how much of it to show."""

    count: Annotated[int, Field(ge=1, le=MOST_TIMES)] = 10
    after: Annotated[datetime | None, Field(description="From when on, in place of now.")] = None


class Act(BaseModel):
    """Why it is done."""

    model_config = ConfigDict(extra="forbid")

    why: Annotated[str, Field(max_length=1000)] = ""


@router.get("/schedules", response_model=Schedules, response_model_exclude_unset=True)
async def list_schedules(request: Request, count: Count = 3) -> Schedules:
    """List all schedules."""
    book, lines = _of(request)
    return Schedules(schedules=[_view(page) for page in await lines.reads.run(book.pages, count)])


@router.post("/schedules", status_code=201, response_model=ScheduleView, response_model_exclude_unset=True)
async def create_schedule(request: Request, response: Response, document: ScheduleDocument) -> ScheduleView:
    """Store a new schedule. Running schedulers know it within five seconds."""
    book, lines = _of(request)
    page = await lines.reads.run(book.create, document)
    response.headers["Location"] = f"/schedules/{document.name}"
    return _view(page)


@router.post("/schedules/preview", response_model=Preview)
async def preview_schedule(request: Request, asked: PreviewRequest) -> Preview:
    """Say when a plan would be due; nothing is stored."""
    book, lines = _of(request)
    return await lines.checks.run(_preview, book, asked)


@router.get("/schedules/{name}", response_model=ScheduleView, response_model_exclude_unset=True)
async def get_schedule(request: Request, name: str, count: Count = 10) -> ScheduleView:
    """Read a schedule, with its last jobs."""
    book, lines = _of(request)

    def read() -> ScheduleView:
        view = _view(book.page(name, count))
        view.runs = [_run(str(row["job_id"]), row["scheduled_for"], row["kind"]) for row in book.runs(name)]
        return view

    return await lines.reads.run(read)


@router.put("/schedules/{name}", response_model=ScheduleView, response_model_exclude_unset=True)
async def replace_schedule(request: Request, name: str, document: ScheduleDocument) -> ScheduleView:
    """Put another schedule in the place of a stored one."""
    book, lines = _of(request)
    return _view(await lines.reads.run(book.replace, name, document))


@router.patch("/schedules/{name}", response_model=ScheduleView, response_model_exclude_unset=True)
async def patch_schedule(request: Request, name: str, changes: dict[str, Any]) -> ScheduleView:
    """Change some members of a stored schedule; null takes one out."""
    book, lines = _of(request)
    return _view(await lines.reads.run(book.patch, name, changes))


@router.delete("/schedules/{name}", status_code=204, response_class=Response)
async def delete_schedule(request: Request, name: str) -> None:
    """Remove a stored schedule. Jobs that it has sent go on."""
    book, lines = _of(request)
    await lines.reads.run(book.delete, name)


@router.post("/schedules/{name}/pause", response_model=ScheduleView, response_model_exclude_unset=True)
async def pause_schedule(request: Request, name: str, act: Act | None = None) -> ScheduleView:
    """Let no due time have a job until it is resumed. Holds at once."""
    book, lines = _of(request)
    return _view(await lines.reads.run(lambda: book.pause(name, by=_who(request), why=act.why if act else "")))


@router.post("/schedules/{name}/resume", response_model=ScheduleView, response_model_exclude_unset=True)
async def resume_schedule(request: Request, name: str, act: Act | None = None) -> ScheduleView:
    """Go on from now. What was due while it was paused is not made up for."""
    book, lines = _of(request)
    return _view(await lines.reads.run(lambda: book.resume(name, by=_who(request))))


@router.post("/schedules/{name}/run", status_code=202, response_model=Started)
async def run_schedule(request: Request, name: str, act: Act | None = None) -> Started:
    """Send one job now, also where the schedule is paused."""
    book, lines = _of(request)
    job_id = await lines.reads.run(lambda: book.run_now(name, by=_who(request)))
    return Started(job_id=UUID(job_id), poll_url=f"/jobs/{job_id}")


def _of(request: Request) -> tuple[ScheduleBook, Lines]:
    book: ScheduleBook = request.app.state.schedules
    return book.seen_by(caller_of(request).tenant), request.app.state.lines


def _who(request: Request) -> str:
    return caller_of(request).name


def _preview(book: ScheduleBook, asked: PreviewRequest) -> Preview:
    after = asked.after
    if after and after.tzinfo is None:
        after = moment_of(after, zone_named(asked.timezone))
    times = book.preview(asked.schedule("preview", "preview"), asked.count, after)
    return Preview(timezone=asked.timezone, next_times=_times(times, asked.timezone))


def _view(page: Page) -> ScheduleView:
    state = page.state
    timezone = page.schedule.timezone if page.schedule else "UTC"
    last = state.last_run if state else None
    return ScheduleView(
        name=page.name,
        source=page.source,
        state=page.standing,
        schedule=dict(page.document),
        timezone=timezone,
        next_times=_times(page.next_times, timezone),
        last_run=_run(last.job_id, last.scheduled_for, last.kind) if last else None,
        paused=PauseView(**asdict(state.paused)) if state and state.paused else None,
        sent=state.sent if state else 0,
        missed=state.missed if state else 0,
        caught_up=state.caught_up if state else 0,
        overlapped=state.overlapped if state else 0,
        failures=state.failures if state else 0,
        last_error=page.problem or (state.last_error if state else None),
    )


def _run(job_id: str, scheduled_for: datetime, kind: str) -> RunView:
    return RunView(job_id=UUID(job_id), scheduled_for=scheduled_for, kind=kind, poll_url=f"/jobs/{job_id}")


def _times(times: Sequence[datetime], timezone: str) -> list[DueTime]:
    zone = zone_named(timezone)
    return [DueTime(at=time, local=time.astimezone(zone)) for time in times]
