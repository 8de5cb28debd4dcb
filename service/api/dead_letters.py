"""`/dead-letters`: list, look, replay one or many, delete. A key of a tenant sees and touches its own jobs' only."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from service.access.scopes import Caller
from service.api.auditing import audited
from service.api.caller import caller_of
from service.api.lines import Lines
from service.api.requests import MOST_DELAY_SECONDS
from service.broker import RedisBroker
from service.broker.dead_letter import DeadLetter
from service.broker.dead_letters import BulkReport, DeadLetters, Filter, Replay
from service.broker.outcome import Reason
from service.errors import Conflict, InvalidRequest, shorten
from service.queues import QUEUES

MOST_LISTED = 200
#: In one request: with the sum of their round trips well below any proxy's patience.
MOST_REPLAYED = 1000

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


class Attempt(BaseModel):
    """One delivery that failed, or a replay between two lives: as the letter's log has it."""

    model_config = ConfigDict(extra="allow")


class DeadLetterView(BaseModel):
    """A job that has died. Personal fields of the payload are masked."""

    job_id: str
    function: str
    original_queue: str
    tenant: str | None = None
    reason: Reason
    failed_at: datetime
    payload: dict[str, Any] | None
    raw_base64: str | None = None
    error: dict[str, str]
    attempts: list[Attempt]
    replays: list[Attempt]


class DeadLetterPage(BaseModel):
    """Dead letters, the newest first. `cursor` leads to older ones; null where there are none."""

    dead_letters: list[DeadLetterView]
    cursor: str | None


class Which(BaseModel):
    """Which dead letters are meant: all that fit every field that is given."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = None
    function: Annotated[str | None, Field(description="The actor's name.")] = None
    reason: Reason | None = None
    error_type: Annotated[str | None, Field(description="The whole name, or its last part.")] = None
    since: Annotated[AwareDatetime | None, Field(description="Died at this time or later.")] = None
    until: Annotated[AwareDatetime | None, Field(description="Died at this time or before.")] = None
    tenant: Annotated[str | None, Field(description="Whose job it was. A key of a tenant leaves it out.")] = None

    def filter(self, caller: Caller) -> Filter:
        """The same for the broker, within what the caller may see. Raises InvalidRequest."""
        if self.queue is not None and self.queue not in QUEUES:
            raise InvalidRequest([("queue", f"is no queue; known queues: {', '.join(QUEUES)}")])
        if caller.tenant is not None and self.tenant not in (None, caller.tenant):
            raise InvalidRequest([("tenant", "this key sees its own tenant's jobs only: leave it out")])
        given: dict[str, Any] = {name: getattr(self, name) for name in Which.model_fields}
        given["tenant"] = caller.tenant or self.tenant
        return Filter(**given)


class Listing(Which):
    """Which dead letters are listed, and from where on."""

    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 50


class ReplayOne(BaseModel):
    """How one job goes back. `payload` takes the place of the one that it died with; its actor checks it."""

    model_config = ConfigDict(extra="forbid")

    payload: dict[str, Any] | None = None
    delay_seconds: Annotated[float | None, Field(ge=0, le=MOST_DELAY_SECONDS)] = None
    why: Annotated[str, Field(max_length=1000)] = ""


class ReplayMany(BaseModel):
    """Which go back, the oldest first, and up to how many of them in this request."""

    model_config = ConfigDict(extra="forbid")

    filter: Which
    all: Annotated[bool, Field(description="Needed where the filter is empty: whatever is dead is meant.")] = False
    limit: Annotated[int, Field(ge=1, le=MOST_REPLAYED)] = MOST_REPLAYED
    dry_run: bool = False
    why: Annotated[str, Field(max_length=1000)] = ""

    def where(self, caller: Caller) -> Filter:
        """Return which are meant. Raises InvalidRequest where that may be more than somebody has thought of."""
        given = self.filter.model_fields_set
        if nulls := [name for name in sorted(given) if getattr(self.filter, name) is None]:
            # What a client wanted to say here has got lost.
            raise InvalidRequest([(f"filter.{name}", "must not be null: leave it out to mean any") for name in nulls])
        if not given and not self.all:
            raise InvalidRequest([("filter", 'is empty: say which, or "all": true beside it')])
        return self.filter.filter(caller)


class Replayed(BaseModel):
    """The job is back on its queue, under its id. `again` says that this request had done it before."""

    job_id: str
    queue: str
    again: bool


class Count(BaseModel):
    """How many of what."""

    queue: str
    function: str
    reason: Reason
    number: int


class ReplayReport(BaseModel):
    """What was done, or with `dry_run` would be. `skipped`: what is on its queue again, or is not Callboard's."""

    replayed: int
    skipped: int
    dry_run: bool
    counts: list[Count]


_Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9._:-]{1,128}$",
        description="A repeated request with it replays no job a second time, also when one has died anew since.",
    ),
]


@router.get("", response_model=DeadLetterPage, response_model_exclude_unset=True)
async def list_dead_letters(request: Request, asked: Annotated[Listing, Query()]) -> DeadLetterPage:
    """List dead letters. A page may be short where the filter fits few of many."""
    letters, lines = _of(request)
    where = asked.filter(caller_of(request))
    page = await lines.acts.run(lambda: letters.page(where, cursor=asked.cursor, limit=asked.limit))
    return DeadLetterPage(dead_letters=[_view(request, letter) for letter in page.letters], cursor=page.cursor)


@router.get("/{job_id}", response_model_exclude_unset=True)
async def get_dead_letter(request: Request, job_id: str) -> DeadLetterView:
    """Show a dead letter, with all that was tried."""
    return _view(request, await _find(request, job_id))


@router.post("/replay")
async def replay_dead_letters(request: Request, asked: ReplayMany, key: _Key = None) -> ReplayReport:
    """Put up to 1,000 jobs back on their queues. Ask again for the rest."""
    letters, lines = _of(request)
    where = asked.where(caller_of(request))

    def act() -> BulkReport:
        return letters.replay_many(
            where,
            by=caller_of(request).name,
            why=asked.why,
            limit=asked.limit,
            dry_run=asked.dry_run,
            request=_request_of(caller_of(request), key),
        )

    report = await lines.acts.run(act)
    told = {**_told(where), **({"dry_run": True} if asked.dry_run else {})}
    audited(request, count=0 if asked.dry_run else report.replayed, filter=told)
    counts = [
        Count(queue=queue, function=function, reason=Reason(reason), number=number)
        for (queue, function, reason), number in sorted(report.counts.items())
    ]
    return ReplayReport(replayed=report.replayed, skipped=report.skipped, dry_run=asked.dry_run, counts=counts)


@router.post("/{job_id}/replay")
async def replay_dead_letter(request: Request, job_id: str, asked: ReplayOne, key: _Key = None) -> Replayed:
    """Put a job back on its first queue, with no attempt behind it."""
    letters, lines = _of(request)
    letter = await _find(request, job_id)
    delay_ms = None if asked.delay_seconds is None else round(asked.delay_seconds * 1000)

    def act() -> Replay:
        return letters.replay(
            letter,
            by=caller_of(request).name,
            why=asked.why,
            payload=asked.payload,
            delay_ms=delay_ms,
            request=_request_of(caller_of(request), key),
        )

    done = await lines.acts.run(act)
    is_done = done in (Replay.DONE, Replay.DONE_BEFORE)
    audited(request, count=int(done is Replay.DONE), filter={"job_id": letter.job_id})
    if not is_done:
        raise Conflict(f"The job {letter.job_id} {_WHY_NOT[done]}")
    return Replayed(job_id=letter.job_id, queue=letter.original_queue, again=done is Replay.DONE_BEFORE)


_WHY_NOT = {
    Replay.GONE: "is no dead letter any more",
    Replay.ON_ITS_QUEUE: "is on its queue: it was sent again",
    Replay.FOREIGN: "can't be replayed: Callboard has not written it, and does not know its place",
}


@router.delete("/{job_id}", status_code=204)
async def delete_dead_letter(request: Request, job_id: str) -> Response:
    """Remove a dead letter for good."""
    letters, lines = _of(request)
    letter = await _find(request, job_id)
    why = request.headers.get("x-reason", "")
    is_removed = await lines.acts.run(lambda: letters.delete(letter, by=caller_of(request).name, why=why))
    audited(request, count=int(is_removed), filter={"job_id": letter.job_id})
    if not is_removed:
        raise Conflict(f"The job {letter.job_id} is no dead letter any more")
    return Response(status_code=204)


def _of(request: Request) -> tuple[DeadLetters, Lines]:
    return DeadLetters(request.app.state.broker), request.app.state.lines


def _request_of(caller: Caller, key: str | None) -> str | None:
    # The same key of another tenant is another one; no key of a client holds a slash.
    return key if key is None or caller.tenant is None else f"{quote(caller.tenant, safe='')}/{key}"


async def _find(request: Request, job_id: str) -> DeadLetter:
    letters, lines = _of(request)
    # In the line of what needs Redis only: reads of PostgreSQL do not wait for it.
    found = await lines.acts.run(letters.get, job_id)
    if found is None or not caller_of(request).may_see(found.tenant):
        raise HTTPException(404, f"Dead letter {shorten(job_id)} not found")
    return found


def _view(request: Request, letter: DeadLetter) -> DeadLetterView:
    broker: RedisBroker = request.app.state.broker
    actor = broker.get_actor(letter.function) if broker.is_named(letter.function) else None
    tenant = {} if letter.tenant is None else {"tenant": letter.tenant}
    return DeadLetterView.model_validate({**letter.shown(actor), **tenant})


def _told(where: Filter) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(where).items() if value is not None}
