"""API keys, and the log of operators' acts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "callboard_api_keys",
        sa.Column("key_id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("tenant", sa.Text()),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False, comment="SHA-256"),
        sa.Column("previous_hash", sa.LargeBinary(), comment="of the secret before the rotation"),
        sa.Column("previous_until", sa.DateTime(timezone=True)),
        sa.Column("rate_per_second", sa.Float()),
        sa.Column("burst", sa.Integer()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
    )
    op.create_index(
        "callboard_api_keys_name",
        "callboard_api_keys",
        ["name"],
        unique=True,
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.create_table(
        "callboard_audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), primary_key=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("ended_at", sa.DateTime(timezone=True), comment="empty: nobody knows how it ended"),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("filter", postgresql.JSONB()),
        sa.Column("count", sa.BigInteger()),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), comment="of the answer; of a command 200 or 500"),
    )


def downgrade() -> None:
    op.drop_table("callboard_audit")
    op.drop_table("callboard_api_keys")
