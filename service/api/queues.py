"""`/queues`: what is on each queue, pause, resume and purge."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from service.api.auditing import audited
from service.api.lines import Lines
from service.api.operators import Reason, who
from service.broker.queue_acts import QueueActs, QueueCounts
from service.broker.workers import live_workers
from service.errors import InvalidRequest, shorten
from service.queues import QUEUES

router = APIRouter(tags=["queues"])
R = TypeVar("R")


class Counts(BaseModel):
    """The jobs of a queue that have not ended, and its dead letters, by state."""

    pending: int
    scheduled: int
    waiting: int
    running: int
    retrying: int
    paused: Annotated[int, Field(description="Could start now if the queue were not paused: then counted here only.")]
    dead: int


class PausedBy(BaseModel):
    """Who has paused a queue, when and why."""

    at: datetime
    by: str
    why: str


class QueueView(BaseModel):
    """A queue as it is now."""

    name: str
    paused: PausedBy | None
    counts: Counts
    counts_are_exact: Annotated[
        bool, Field(description="False where `retrying` is estimated of a sample: of more than 500 that have failed.")
    ]
    oldest_seconds: Annotated[
        float | None,
        Field(
            description="Since the oldest of what may start was sent, or failed last; null where there is none. "
            "Of what was sent for later, the time until then counts as well."
        ),
    ]
    finished_per_minute: Annotated[float, Field(description="Of the last minute, by the workers that are up.")]
    workers: Annotated[int, Field(description="The live worker processes that serve it.")]


class Queues(BaseModel):
    """All queues, in the order of the table."""

    queues: list[QueueView]


class Switched(BaseModel):
    """`changed` is false where the queue was so before."""

    name: str
    paused: bool
    changed: bool


class PurgeOptions(BaseModel):
    """How a queue is purged. A name that is none is refused: without its `dry_run`, a request would do it."""

    model_config = ConfigDict(extra="forbid")

    confirm: Annotated[str, Field(description="The queue's name once more; not needed for a dry run.")] = ""
    dry_run: Annotated[bool, Field(description="Only count.")] = False
    keep: Annotated[bool, Field(description="As dead letters, which can be replayed.")] = False


class Purged(BaseModel):
    """What a purge has taken out, or would."""

    name: str
    dry_run: bool
    kept: Annotated[bool, Field(description="Whether they are dead letters now, which can be replayed.")]
    purged: int
    counts: Counts


@router.get("/queues", response_model=Queues)
async def list_queues(request: Request) -> Queues:
    """Count what is on every queue."""

    def look() -> Queues:
        counts, views = QueueActs(request.app.state.broker).counts(), _views(request)
        return Queues(queues=[views(one) for one in counts])

    return await _run(request, look)


@router.get("/queues/{name}", response_model=QueueView)
async def get_queue(request: Request, name: str) -> QueueView:
    """Count what is on one queue."""
    _check_name(name)
    return await _run(request, lambda: _views(request)(QueueActs(request.app.state.broker).counts_of(name)))


@router.post("/queues/{name}/pause", response_model=Switched)
async def pause_queue(request: Request, name: str, reason: Reason | None = None) -> Switched:
    """Let nothing of a queue start until it is resumed, in whichever worker. What runs goes on."""
    _check_name(name)
    acts, why, by = QueueActs(request.app.state.broker), (reason or Reason()).why, who(request)
    changed = await _run(request, lambda: acts.pause(name, by=by, why=why))
    audited(request, count=int(changed), filter={"queue": name})
    return Switched(name=name, paused=True, changed=changed)


@router.post("/queues/{name}/resume", response_model=Switched)
async def resume_queue(request: Request, name: str, reason: Reason | None = None) -> Switched:
    """Let a queue go on: its idle workers start at once."""
    _check_name(name)
    acts, why, by = QueueActs(request.app.state.broker), (reason or Reason()).why, who(request)
    changed = await _run(request, lambda: acts.resume(name, by=by, why=why))
    audited(request, count=int(changed), filter={"queue": name})
    return Switched(name=name, paused=False, changed=changed)


@router.post("/queues/{name}/purge", response_model=Purged)
async def purge_queue(
    request: Request, name: str, asked: Annotated[PurgeOptions, Query()], reason: Reason | None = None
) -> Purged:
    """Take out what waits on a queue: it ends as cancelled. What runs, and what is dead already, is left alone."""
    _check_name(name)
    if asked.confirm != name and not asked.dry_run:
        raise InvalidRequest([("confirm", f"must be the queue's name: ?confirm={name}; or ask for a ?dry_run=true")])
    acts, why, by = QueueActs(request.app.state.broker), (reason or Reason()).why, who(request)

    def purge() -> Purged:
        counts = acts.counts_of(name)
        purged = counts.purgeable if asked.dry_run else acts.purge(name, by=by, why=why, keep=asked.keep)
        return Purged(name=name, dry_run=asked.dry_run, kept=asked.keep, purged=purged, counts=_counts(counts))

    done = await _run(request, purge)
    told = {"queue": name, "dry_run": asked.dry_run, "keep": asked.keep}
    audited(request, count=0 if asked.dry_run else done.purged, filter=told)
    return done


def _check_name(name: str) -> None:
    if name not in QUEUES:
        raise HTTPException(404, f"Queue {shorten(name)} not found; known queues: {', '.join(QUEUES)}")


async def _run(request: Request, do: Callable[[], R]) -> R:
    lines: Lines = request.app.state.lines
    return await lines.sends.run(do)


def _views(request: Request) -> Callable[[QueueCounts], QueueView]:
    rates, serving = Counter[str](), Counter[str]()
    for worker in live_workers(request.app.state.broker):
        rates.update(worker.per_minute)  # pyright: ignore[reportArgumentType]
        serving.update(worker.queues)

    def view(counts: QueueCounts) -> QueueView:
        return QueueView(
            name=counts.name,
            paused=counts.pause and PausedBy(at=counts.pause.at, by=counts.pause.by, why=counts.pause.why),
            counts=_counts(counts),
            counts_are_exact=counts.is_exact,
            oldest_seconds=counts.oldest_seconds,
            finished_per_minute=rates[counts.name],
            workers=serving[counts.name],
        )

    return view


def _counts(counts: QueueCounts) -> Counts:
    return Counts(**{name: getattr(counts, name) for name in Counts.model_fields})
