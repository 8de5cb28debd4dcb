"""The tables of job history. A change here needs a migration in `migrations/versions/`."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, DateTime, Index, Integer, MetaData, Table, Text, false
from sqlalchemy.dialects.postgresql import JSONB, UUID

metadata = MetaData()

jobs = Table(
    "callboard_jobs",
    metadata,
    Column("job_id", UUID(as_uuid=True), primary_key=True),
    Column("sequence", BigInteger, nullable=False, comment="number of the event that made this row"),
    Column("type", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),
    Column("started_at", DateTime(timezone=True)),
    Column("completed_at", DateTime(timezone=True)),
    Column("result", JSON(none_as_null=True), comment="as the actor returned it, keys in their order"),
    Column("error", JSONB(none_as_null=True)),
    Column("skipped", Boolean, nullable=False, server_default=false(), comment="a duplicate, which did not run"),
    Index("callboard_jobs_created_at", "created_at"),
)
