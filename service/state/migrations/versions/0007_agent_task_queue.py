"""Tasks of agents, and the runs of those in progress."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "agent_task_queue",
        sa.Column("task_id", postgresql.UUID(as_uuid=True), primary_key=True),
        sa.Column("task_type", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column(
            "priority", sa.SmallInteger(), nullable=False, server_default=sa.text("5"), comment="1 (first) to 10"
        ),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("result", sa.JSON(), comment="as the actor returned it"),
        sa.Column("error_message", sa.Text()),
        sa.Column("job_id", postgresql.UUID(as_uuid=True), comment="of its newest execution"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("priority BETWEEN 1 AND 10", name="agent_task_queue_priority"),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'failed', 'cancelled')", name="agent_task_queue_status"
        ),
    )
    op.create_index("agent_task_queue_created_at", "agent_task_queue", ["created_at", "task_id"])
    op.create_index("agent_task_queue_status_created_at", "agent_task_queue", ["status", "created_at", "task_id"])
    op.create_index("agent_task_queue_task_type_created_at", "agent_task_queue", ["task_type", "created_at", "task_id"])
    op.create_table(
        "callboard_task_runs",
        sa.Column("job_id", postgresql.UUID(as_uuid=True), primary_key=True),
        sa.Column(
            "task_id",
            postgresql.UUID(as_uuid=True),
            sa.ForeignKey("agent_task_queue.task_id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("message", sa.LargeBinary(), nullable=False, comment="the job's message, as it is sent"),
        sa.Column("sent_at", sa.DateTime(timezone=True), comment="null until Redis has the job"),
        sa.Column(
            "looks",
            sa.SmallInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="at the job, by reconcilers",
        ),
        sa.Column(
            "look_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now(), comment="the next look"
        ),
    )
    op.create_index("callboard_task_runs_look_at", "callboard_task_runs", ["look_at"])
    op.create_index("callboard_task_runs_task_id", "callboard_task_runs", ["task_id"])


def downgrade() -> None:
    op.drop_table("callboard_task_runs")
    op.drop_table("agent_task_queue")
