"""`callboard migrate`: brings the database's tables up to date, then ends."""

import argparse
import logging
import time


def configure(parser: argparse.ArgumentParser) -> None:
    """A database that is just starting can be waited for."""
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for the database to answer (default: not at all)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Migrate; running it again changes nothing."""
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    settings = get_settings()
    configure_logs(settings)
    database_url = settings.require_database_url()

    # It lists its own parts, when it is imported, at the level of what it does to the database.
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    # Before the wait, so that the time in which a database starts is not lost.
    from service.state.migrate import upgrade

    if arguments.wait > 0:
        _wait_for(database_url, time.monotonic() + arguments.wait)
    upgrade(database_url)
    return 0


def _wait_for(database_url: str, deadline: float) -> None:
    import psycopg

    while True:
        try:
            psycopg.connect(database_url, connect_timeout=5).close()
        except psycopg.OperationalError:
            # From here on the migration itself says what is wrong.
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        else:
            return
