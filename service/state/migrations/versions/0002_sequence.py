"""Events are numbered by their place in the stream, which needs 63 bits."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.alter_column("callboard_jobs", "sequence", type_=sa.BigInteger())


def downgrade() -> None:
    op.alter_column("callboard_jobs", "sequence", type_=sa.Integer())
