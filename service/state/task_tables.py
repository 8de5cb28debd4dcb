"""The tables of agents' tasks. A change here needs a migration in `migrations/versions/`."""

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import UUID

from service.state.tables import metadata

tasks = Table(
    "agent_task_queue",
    metadata,
    Column("task_id", UUID(as_uuid=True), primary_key=True),
    Column("task_type", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False, server_default=text("5"), comment="1 (first) to 10"),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("result", JSON(none_as_null=True), comment="as the actor returned it"),
    Column("error_message", Text),
    Column("job_id", UUID(as_uuid=True), comment="of its newest execution"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("started_at", DateTime(timezone=True)),
    Column("completed_at", DateTime(timezone=True)),
    CheckConstraint("priority BETWEEN 1 AND 10", name="agent_task_queue_priority"),
    CheckConstraint(
        "status IN ('pending', 'in_progress', 'completed', 'failed', 'cancelled')", name="agent_task_queue_status"
    ),
    Index("agent_task_queue_created_at", "created_at", "task_id"),
    Index("agent_task_queue_status_created_at", "status", "created_at", "task_id"),
    Index("agent_task_queue_task_type_created_at", "task_type", "created_at", "task_id"),
)

#: One row for each task in progress, from its execution to its outcome: what a job that was not sent is sent from.
runs = Table(
    "callboard_task_runs",
    metadata,
    Column("job_id", UUID(as_uuid=True), primary_key=True),
    Column("task_id", UUID(as_uuid=True), ForeignKey("agent_task_queue.task_id", ondelete="CASCADE"), nullable=False),
    Column("message", LargeBinary, nullable=False, comment="the job's message, as it is sent"),
    Column("sent_at", DateTime(timezone=True), comment="null until Redis has the job"),
    Column("looks", SmallInteger, nullable=False, server_default=text("0"), comment="at the job, by reconcilers"),
    Column("look_at", DateTime(timezone=True), nullable=False, server_default=func.now(), comment="the next look"),
    Index("callboard_task_runs_look_at", "look_at"),
    Index("callboard_task_runs_task_id", "task_id"),
)
