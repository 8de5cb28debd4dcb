"""The table of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "callboard_jobs",
        sa.Column("job_id", postgresql.UUID(as_uuid=True), primary_key=True),
        sa.Column(
            "sequence",
            sa.Integer(),
            nullable=False,
            comment="number of the event that made this row",
        ),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.Column("result", sa.JSON(), comment="as the actor returned it, keys in their order"),
        sa.Column("error", postgresql.JSONB()),
    )
    op.create_index("callboard_jobs_created_at", "callboard_jobs", ["created_at"])


def downgrade() -> None:
    op.drop_table("callboard_jobs")
