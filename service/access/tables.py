"""The tables of keys and of operators' acts. A change here needs a migration in `state/migrations/versions/`."""

from sqlalchemy import BigInteger, Column, DateTime, Float, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from service.state.tables import metadata

keys = Table(
    "callboard_api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("tenant", Text),
    Column("secret_hash", LargeBinary, nullable=False, comment="SHA-256"),
    Column("previous_hash", LargeBinary, comment="of the secret before the rotation"),
    Column("previous_until", DateTime(timezone=True)),
    Column("rate_per_second", Float),
    Column("burst", Integer),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    # The name of a revoked key is free again.
    Index("callboard_api_keys_name", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
)

audit = Table(
    "callboard_audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("begun_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("ended_at", DateTime(timezone=True), comment="empty: nobody knows how it ended"),
    Column("who", Text, nullable=False),
    Column("key_id", Text),
    Column("tenant", Text),
    Column("what", Text, nullable=False),
    Column("filter", JSONB(none_as_null=True)),
    Column("count", BigInteger),
    Column("why", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("status", Integer, comment="of the answer; of a command 200 or 500"),
)
