"""A job may end as the duplicate of another, without a run of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("callboard_jobs", sa.Column("skipped", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("callboard_jobs", "skipped")
