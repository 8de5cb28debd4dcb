"""Brings a database to the newest migration. Safe to run from several processes at once: one does the work."""

import logging
import math
from pathlib import Path
from time import monotonic, sleep

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from service.errors import HistoryUnavailable
from service.state.database import engine_for, reaching

VERSION_TABLE = "callboard_version"
#: Any number will do, as long as nothing else in the database locks it.
MIGRATION_LOCK = 4_226_001
#: For a table that somebody uses. Whoever wants to read it meanwhile waits too, and comes to it in the pause.
LOCK_SECONDS = 1
PAUSE_SECONDS = 1.0
INSIST_SECONDS = 600.0

logger = logging.getLogger(__name__)


def upgrade(database_url: str) -> None:
    """Run the migrations that are missing, however long they take. Raises HistoryUnavailable.

    A database that a newer release has migrated is left as it is: the release before works on it.
    """
    engine = engine_for(database_url)
    gives_up_at = monotonic() + INSIST_SECONDS
    with reaching(engine, math.inf):
        while not _upgrade(engine):
            if monotonic() > gives_up_at:
                raise HistoryUnavailable(
                    f"For {INSIST_SECONDS:g} s a table that is to be changed was in use all the time, and nothing is "
                    "changed: does a long query run, or was a transaction left open?"
                )
            logger.warning("A table that is to be changed is in use: trying again in %g s", PAUSE_SECONDS)
            sleep(PAUSE_SECONDS)
    engine.dispose()


def _upgrade(engine: Engine) -> bool:
    """Do it in one transaction. Returns False, with nothing done, where somebody has kept a table for too long."""
    try:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
            config = Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
            config.attributes["connection"] = connection
            if newer := _newer(connection, config):
                logger.warning("A newer release has migrated the database (to %s): it is left as it is", newer)
            else:
                command.upgrade(config, "head")
    except OperationalError as error:
        if isinstance(error.orig, LockNotAvailable):
            return False
        raise
    return True


def _newer(connection: Connection, config: Config) -> str | None:
    """Return the revision of the database, where this release does not know it."""
    revision = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    return revision if revision not in {None, *known} else None
