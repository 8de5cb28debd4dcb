"""Jobs with all that they were sent with, and their events, by the day of the jobs' creation.

The rows of the release before are copied, so this takes as long as that does: some ten seconds for a million. What
reads or writes the table waits meanwhile; sends and workers do not.
"""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0006"

BEFORE = (
    *("job_id", "sequence", "type", "queue", "state", "attempt", "created_at", "changed_at", "started_at"),
    *("completed_at", "result", "error", "skipped"),
)


def upgrade() -> None:
    op.execute("SET LOCAL statement_timeout = 0")
    op.execute("ALTER TABLE callboard_jobs RENAME TO callboard_jobs_before")
    op.execute("ALTER INDEX callboard_jobs_created_at RENAME TO callboard_jobs_before_created_at")
    op.execute("ALTER INDEX callboard_jobs_pkey RENAME TO callboard_jobs_before_pkey")
    _make_jobs()
    _make_events()
    for parent in ("callboard_jobs", "callboard_events"):
        op.execute(f"CREATE TABLE {parent}_default PARTITION OF {parent} DEFAULT")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for offset in range(-2, 8):
            day = today + timedelta(days=offset)
            op.execute(
                f"CREATE TABLE {parent}_{day:%Y%m%d} PARTITION OF {parent} "
                f"FOR VALUES FROM ('{day.isoformat()}') TO ('{(day + timedelta(days=1)).isoformat()}')"
            )
    names = ", ".join(BEFORE)
    op.execute(
        f"INSERT INTO callboard_jobs ({names}, last_sequence) SELECT {names}, sequence FROM callboard_jobs_before"
    )
    op.drop_table("callboard_jobs_before")


def _make_jobs() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "callboard_jobs",
        sa.Column("job_id", postgresql.UUID(as_uuid=True), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="number of the event whose state the row has"),
        sa.Column(
            "last_sequence", sa.BigInteger(), nullable=False, comment="number of the newest event that is stored"
        ),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("changed_at", time, nullable=False),
        sa.Column("started_at", time, comment="the first start, since the last replay"),
        sa.Column("completed_at", time),
        sa.Column("run_at", time, comment="the time that it waits for"),
        sa.Column("worker", sa.Text(), comment="who has run it last"),
        sa.Column("reason", sa.Text(), comment="why it is dead"),
        sa.Column(
            "skipped",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="a duplicate, which did not run",
        ),
        sa.Column("priority", sa.SmallInteger(), comment="0 (first) to 9"),
        sa.Column("tenant", sa.Text()),
        sa.Column("key", sa.Text(), comment="idempotency key"),
        sa.Column("parent_id", postgresql.UUID(as_uuid=True), comment="the job that has sent it"),
        sa.Column("result", sa.JSON(), comment="as the actor returned it, keys in their order"),
        sa.Column("error", postgresql.JSONB()),
        sa.Column("payload", postgresql.JSONB(), comment="the keyword arguments, for searches; null where too long"),
        sa.Column("message", sa.LargeBinary(), comment="as it was sent: of it the broker can be filled again"),
        sa.PrimaryKeyConstraint("created_at", "job_id"),
        postgresql_partition_by="RANGE (created_at)",
    )
    op.create_index("callboard_jobs_job_id", "callboard_jobs", ["job_id"])
    op.create_index("callboard_jobs_state", "callboard_jobs", ["state", "created_at", "job_id"])
    op.create_index("callboard_jobs_type", "callboard_jobs", ["type", "created_at", "job_id"])
    op.create_index(
        "callboard_jobs_payload",
        "callboard_jobs",
        ["payload"],
        postgresql_using="gin",
        postgresql_ops={"payload": "jsonb_path_ops"},
    )
    for name in ("tenant", "key", "parent_id"):
        op.create_index(
            f"callboard_jobs_{name}",
            "callboard_jobs",
            [name, "created_at", "job_id"],
            postgresql_where=sa.text(f"{name} IS NOT NULL"),
        )


def _make_events() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "callboard_events",
        sa.Column("created_at", time, nullable=False, comment="of the job"),
        sa.Column("job_id", postgresql.UUID(as_uuid=True), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("copy", sa.BigInteger(), nullable=False, comment="0, but for a job that was sent while it was there"),
        sa.Column(
            "kind", sa.Text(), nullable=False, comment="sent, started, waiting, replayed, settled, progress, log"
        ),
        sa.Column("at", time, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), comment="null of progress and log, which change none"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", time),
        sa.Column("run_at", time),
        sa.Column("worker", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("key", sa.Text(), comment="idempotency key: of a waiting one, that which it waits for"),
        sa.Column("priority", sa.SmallInteger()),
        sa.Column("error", postgresql.JSONB(), comment="type and message"),
        sa.Column("data", sa.JSON(), comment="progress, or lines of the job's log"),
        sa.PrimaryKeyConstraint("created_at", "job_id", "sequence", "copy"),
        postgresql_partition_by="RANGE (created_at)",
    )


def downgrade() -> None:
    op.execute("SET LOCAL statement_timeout = 0")
    op.drop_table("callboard_events")
    op.execute("ALTER TABLE callboard_jobs RENAME TO callboard_jobs_after")
    op.execute(f"CREATE TABLE callboard_jobs AS SELECT {', '.join(BEFORE)} FROM callboard_jobs_after")
    op.drop_table("callboard_jobs_after")
    op.create_primary_key("callboard_jobs_pkey", "callboard_jobs", ["job_id"])
    op.create_index("callboard_jobs_created_at", "callboard_jobs", ["created_at"])
    for name in BEFORE[:8]:
        op.alter_column("callboard_jobs", name, nullable=False)
    op.alter_column("callboard_jobs", "skipped", nullable=False, server_default=sa.false())
