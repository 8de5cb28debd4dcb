"""The tables of job history, each partitioned by the day on which its job was created: see partitions.py.

A change here needs a migration in `migrations/versions/`.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    false,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

metadata = MetaData()

jobs = Table(
    "callboard_jobs",
    metadata,
    Column("job_id", UUID(as_uuid=True), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("sequence", BigInteger, nullable=False, comment="number of the event whose state the row has"),
    Column("last_sequence", BigInteger, nullable=False, comment="number of the newest event that is stored"),
    Column("type", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),
    Column("started_at", DateTime(timezone=True), comment="the first start, since the last replay"),
    Column("completed_at", DateTime(timezone=True)),
    Column("run_at", DateTime(timezone=True), comment="the time that it waits for"),
    Column("worker", Text, comment="who has run it last"),
    Column("reason", Text, comment="why it is dead"),
    Column("skipped", Boolean, nullable=False, server_default=false(), comment="a duplicate, which did not run"),
    Column("priority", SmallInteger, comment="0 (first) to 9"),
    Column("tenant", Text),
    Column("key", Text, comment="idempotency key"),
    Column("parent_id", UUID(as_uuid=True), comment="the job that has sent it"),
    Column("result", JSON(none_as_null=True), comment="as the actor returned it, keys in their order"),
    Column("error", JSONB(none_as_null=True)),
    Column("payload", JSONB(none_as_null=True), comment="the keyword arguments, for searches; null where too long"),
    Column("message", LargeBinary, comment="as it was sent: of it the broker can be filled again"),
    PrimaryKeyConstraint("created_at", "job_id"),
    Index("callboard_jobs_job_id", "job_id"),
    Index("callboard_jobs_state", "state", "created_at", "job_id"),
    Index("callboard_jobs_type", "type", "created_at", "job_id"),
    Index("callboard_jobs_payload", "payload", postgresql_using="gin", postgresql_ops={"payload": "jsonb_path_ops"}),
    postgresql_partition_by="RANGE (created_at)",
)
for name in ("tenant", "key", "parent_id"):
    column = jobs.c[name]
    # Most jobs have none of these, and pay nothing for their index.
    Index(f"callboard_jobs_{name}", column, jobs.c.created_at, jobs.c.job_id, postgresql_where=column.isnot(None))

events = Table(
    "callboard_events",
    metadata,
    Column("created_at", DateTime(timezone=True), nullable=False, comment="of the job"),
    Column("job_id", UUID(as_uuid=True), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("copy", BigInteger, nullable=False, comment="0, but for a job that was sent while it was there"),
    Column("kind", Text, nullable=False, comment="sent, started, waiting, replayed, settled, progress, log"),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, comment="null of progress and log, which change none"),
    Column("attempt", Integer, nullable=False),
    Column("started_at", DateTime(timezone=True)),
    Column("run_at", DateTime(timezone=True)),
    Column("worker", Text),
    Column("reason", Text),
    Column("key", Text, comment="idempotency key: of a waiting one, that which it waits for"),
    Column("priority", SmallInteger),
    Column("error", JSONB(none_as_null=True), comment="type and message"),
    Column("data", JSON(none_as_null=True), comment="progress, or lines of the job's log"),
    PrimaryKeyConstraint("created_at", "job_id", "sequence", "copy"),
    postgresql_partition_by="RANGE (created_at)",
)
