"""Schedules that are made at run time, what is known of all schedules, and one row for each of their jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "callboard_schedules",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False, comment="rises with each change"),
        sa.Column("tenant", sa.Text()),
        sa.Column("document", sa.JSON(), nullable=False, comment="as the API takes it; JSON, since JSONB holds no NUL"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "callboard_schedule_states",
        sa.Column("name", sa.Text(), primary_key=True, comment="of a schedule in code or in callboard_schedules"),
        sa.Column("revision", sa.BigInteger(), nullable=False, comment="of two copies the higher is newer"),
        sa.Column("state", sa.JSON(), nullable=False, comment="a copy of what Redis knows"),
    )
    op.create_table(
        "callboard_schedule_runs",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), primary_key=True, comment="the nominal time"),
        sa.Column("job_id", postgresql.UUID(as_uuid=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="due, missed or by-hand"),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("sent_at", sa.DateTime(timezone=True), comment="when its job was in its queue"),
    )
    op.create_index("callboard_schedule_runs_claimed_at", "callboard_schedule_runs", ["claimed_at"])


def downgrade() -> None:
    op.drop_table("callboard_schedule_runs")
    op.drop_table("callboard_schedule_states")
    op.drop_table("callboard_schedules")
