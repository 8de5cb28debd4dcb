"""The connection to PostgreSQL: one engine for a process, and errors that say where the database is."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from service.errors import HistoryUnavailable
from service.settings import mask

CONNECT_TIMEOUT_SECONDS = 5
STATEMENT_TIMEOUT_MS = 10_000


def engine_for(database_url: str) -> Engine:
    """Make an engine. It connects when it is first used, and tries a pooled connection before handing it out."""
    url = make_url(database_url).set(drivername="postgresql+psycopg")
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=5,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c timezone=UTC",
        },
    )


@contextmanager
def reaching(engine: Engine) -> Generator[None]:
    """Turn the driver's connection errors into HistoryUnavailable that names host and port."""
    try:
        yield
    except DBAPIError as error:
        where = f"{engine.url.host or 'localhost'}:{engine.url.port or 5432}"
        reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        raise HistoryUnavailable(f"PostgreSQL at {where} can't be used: {mask(reason)}") from error
