"""`/audit`: the log of operators' acts, the newest first."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from service.access.audit import MOST_LINES, AuditLine, AuditLog
from service.api.lines import Lines
from service.errors import HistoryUnavailable, InvalidRequest

router = APIRouter(tags=["access"])


class AuditView(BaseModel):
    """One act. Without `ended_at` nobody knows how far it came: its process died, or the log could not be written."""

    id: int
    begun_at: datetime
    ended_at: datetime | None
    who: Annotated[str, Field(description="The key's name; `cli:` and a user for the command line.")]
    key_id: str | None
    tenant: str | None
    what: str
    filter: Any
    count: int | None
    why: str
    request_id: str
    status: int | None


class AuditPage(BaseModel):
    """Acts, the newest first. `cursor` leads to older ones; null where there are none."""

    lines: list[AuditView]
    cursor: str | None


@router.get("/audit", response_model=AuditPage)
async def list_acts(
    request: Request,
    cursor: Annotated[str | None, Query(description="The cursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 50,
    who: Annotated[str | None, Query(description="Only what this key, or `cli:USER`, has done.")] = None,
) -> AuditPage:
    """Read what operators have done."""
    log: AuditLog | None = request.app.state.audit_log
    if log is None:
        raise HistoryUnavailable("This process keeps no audit log")
    lines: Lines = request.app.state.lines
    before = None if cursor is None else _number(cursor)
    who = None if who is not None and "\x00" in who else who
    found: list[AuditLine] = await lines.reads.run(lambda: log.page(before=before, limit=limit + 1, who=who))
    page = found[:limit]
    more = str(page[-1].id) if len(found) > limit else None
    return AuditPage(lines=[AuditView.model_validate(line, from_attributes=True) for line in page], cursor=more)


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidRequest([("cursor", "is none that this list has given")])
    return int(cursor)
