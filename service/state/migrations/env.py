"""Alembic's entry: runs the migrations on the connection that `service.state.migrate` opened."""

from alembic import context

from service.state.migrate import VERSION_TABLE
from service.state.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
