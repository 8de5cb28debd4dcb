"""`GET /jobs`: pages of jobs by what they are, the newest first."""

import json
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, Json

from service.access.scopes import Caller
from service.api.caller import caller_of
from service.api.jobs import JobView, view_of
from service.api.lines import Lines
from service.broker.tenant_keys import scoped_key
from service.errors import InvalidRequest
from service.state.history import History
from service.state.queries import Count, Cursor, Filter
from service.state.states import STATUS_OF, State, Status

MOST_LISTED = 200

router = APIRouter(tags=["jobs"])


class WhichJobs(BaseModel):
    """Which jobs are meant: those that fit every field that is given. Times are from (inclusive) and before."""

    model_config = ConfigDict(extra="forbid")

    state: Annotated[list[State], Field(description="Several may be given.")] = []
    status: Status | None = None
    type: Annotated[str | None, Field(description="The actor's own name.")] = None
    queue: str | None = None
    tenant: str | None = None
    key: Annotated[str | None, Field(description="The idempotency key; of a tenant's jobs, as sent or shown.")] = None
    parent_id: Annotated[UUID | None, Field(description="The job that has sent them.")] = None
    created_from: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ended_from: AwareDatetime | None = None
    ended_before: AwareDatetime | None = None
    payload: Annotated[
        Json[dict[str, Any]] | None,
        Field(description='A JSON object with fields of the payload and their values, such as {"ref_id": "A17"}.'),
    ] = None

    def filter(self, caller: Caller) -> Filter:
        """The same for the history, within what the caller may see. Raises InvalidRequest."""
        if caller.tenant is not None and self.tenant not in (None, caller.tenant):
            raise InvalidRequest([("tenant", "this key sees its own tenant's jobs only: leave it out")])
        for name in ("type", "queue", "tenant", "key"):
            if "\x00" in (getattr(self, name) or ""):
                raise InvalidRequest([(name, "holds NUL, which no job has")])
        try:
            json.dumps(self.payload, allow_nan=False)
        except ValueError:
            raise InvalidRequest([("payload", "holds NaN or an infinite number, which no job has")]) from None
        tenant = caller.tenant or self.tenant
        return Filter(
            states=self._states(),
            actor=self.type,
            queue=self.queue,
            tenant=tenant,
            key=self.key and scoped_key(self.key, tenant),
            parent_id=self.parent_id,
            created_from=self.created_from,
            created_before=self.created_before,
            ended_from=self.ended_from,
            ended_before=self.ended_before,
            payload=self.payload or {},
        )

    def _states(self) -> frozenset[State]:
        if self.status is None:
            return frozenset(self.state)
        of_status = frozenset(state for state, status in STATUS_OF.items() if status is self.status)
        if not self.state:
            return of_status
        if not (both := of_status & set(self.state)):
            raise InvalidRequest([("status", "no state that is given has this status")])
        return both


class Listing(WhichJobs):
    """Which jobs are listed, and from where on."""

    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 50
    count: Annotated[bool, Field(description="Whether to count all that fit, up to 10,000.")] = False


class JobCount(BaseModel):
    """How many jobs there are: exactly, or at least."""

    number: int
    is_exact: bool


class JobPage(BaseModel):
    """Jobs, the newest first, without their results. `cursor` leads to older ones; null where there are none."""

    jobs: list[JobView]
    cursor: str | None
    count: JobCount | None = None


@router.get("/jobs", response_model=JobPage, response_model_exclude_unset=True)
async def list_jobs(request: Request, asked: Annotated[Listing, Query()]) -> JobPage:
    """List jobs. One that was sent in the last moments may be missing still; what is shown is as it is now."""
    history: History = request.app.state.history
    lines: Lines = request.app.state.lines
    wanted = asked.filter(caller_of(request))
    cursor = None if asked.cursor is None else _read(asked.cursor)
    page = await lines.reads.run(history.page, wanted, cursor, asked.limit)
    shown: dict[str, Any] = {}
    if asked.count:
        count: Count = await lines.reads.run(history.count, wanted)
        shown["count"] = JobCount(number=count.number, is_exact=count.is_exact)
    jobs = [view_of(each, with_result=False) for each in page.jobs]
    return JobPage(jobs=jobs, cursor=None if page.cursor is None else _written(page.cursor), **shown)


def _written(cursor: Cursor) -> str:
    return f"{cursor.created_at.isoformat()}_{cursor.job_id}"


def _read(written: str) -> Cursor:
    try:
        time, _, job_id = written.partition("_")
        # A plus in a query that was not escaped is a space.
        cursor = Cursor(datetime.fromisoformat(time.replace(" ", "+")), UUID(job_id))
        if cursor.created_at.tzinfo is None:
            raise ValueError("has no zone")
        return cursor
    except ValueError:
        raise InvalidRequest([("cursor", "must be the cursor of a page before, or absent for the first")]) from None
