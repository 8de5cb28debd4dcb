"""Brings a database to the newest migration. Safe to run from several processes at once: one does the work."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from service.state.database import engine_for, reaching

#: Any number will do, as long as nothing else in the database locks it.
MIGRATION_LOCK = 4_226_001


def upgrade(database_url: str) -> None:
    """Run the migrations that are missing. Raises HistoryUnavailable."""
    engine = engine_for(database_url)
    with reaching(engine), engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()
