"""The tables of schedules. A change here needs a migration in `service/state/migrations/versions/`."""

from sqlalchemy import JSON, BigInteger, Column, DateTime, Index, Table, Text, func
from sqlalchemy.dialects.postgresql import UUID

from service.state.tables import metadata

schedules = Table(
    "callboard_schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, nullable=False, comment="rises with each change"),
    Column("tenant", Text),
    Column("document", JSON, nullable=False, comment="as the API takes it; JSON, since JSONB holds no NUL"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

states = Table(
    "callboard_schedule_states",
    metadata,
    Column("name", Text, primary_key=True, comment="of a schedule in code or in callboard_schedules"),
    Column("revision", BigInteger, nullable=False, comment="of two copies the higher is newer"),
    Column("state", JSON, nullable=False, comment="a copy of what Redis knows"),
)

runs = Table(
    "callboard_schedule_runs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("scheduled_for", DateTime(timezone=True), primary_key=True, comment="the nominal time"),
    Column("job_id", UUID(as_uuid=True), nullable=False),
    Column("kind", Text, nullable=False, comment="due, missed or by-hand"),
    Column("claimed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("sent_at", DateTime(timezone=True), comment="when its job was in its queue"),
    Index("callboard_schedule_runs_claimed_at", "claimed_at"),
)
