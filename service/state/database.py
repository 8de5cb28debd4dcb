"""The connection to PostgreSQL: one engine for a process, bounded waits, and errors that say where the database is."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from service.errors import HistoryUnavailable
from service.settings import mask

CONNECT_TIMEOUT_SECONDS = 5
STATEMENT_TIMEOUT_MS = 10_000
#: A server that works has answered, or given up, before: one that is frozen never would, and its kernel keeps the
#: connection alive.
REPLY_TIMEOUT_SECONDS = 15.0
POOL_TIMEOUT_SECONDS = 2.0
#: The driver takes no less.
LEAST_CONNECT_TIMEOUT_SECONDS = 2

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def engine_for(database_url: str) -> Engine:
    """Make an engine. It connects when it is first used, and tries a pooled connection before handing it out."""
    url = make_url(database_url).set(drivername="postgresql+psycopg")
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=5,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            # Our statements are short, and touch many partitions: to compile one takes seconds where the server can.
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c timezone=UTC -c jit=off",
        },
    )
    event.listen(engine, "do_connect", _connect)
    return engine


@contextmanager
def reaching(engine: Engine, within_seconds: float | None = None) -> Generator[None]:
    """Turn the driver's connection errors into HistoryUnavailable that names host and port.

    `within_seconds` bounds all waits inside together, in place of REPLY_TIMEOUT_SECONDS for each; a connection that has
    to be made may take two seconds more.
    """
    token = _deadline.set(None if within_seconds is None else monotonic() + within_seconds)
    where = f"PostgreSQL at {engine.url.host or 'localhost'}:{engine.url.port or 5432}"
    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        raise HistoryUnavailable(f"{where} can't be used: {mask(reason)}") from error
    except psycopg.Error as error:  # of what is said to the driver itself
        raise HistoryUnavailable(
            f"{where} can't be used: {mask(str(error).strip() or type(error).__name__)}"
        ) from error
    except NoFreeConnection as error:
        raise HistoryUnavailable(f"{where} can't be used: all connections to it are busy") from error
    finally:
        _deadline.reset(token)


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection that does not wait for ever, nor for `statement_timeout`, which a frozen server does not keep."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        deadline = _deadline.get()
        if deadline is None:
            deadline = monotonic() + REPLY_TIMEOUT_SECONDS
        return super().wait(self._until(deadline, gen), *args, **kwargs)

    def _until(self, deadline: float, gen: Any) -> Generator[Any, Any, Any]:
        # The driver asks ten times a second, also where nothing has arrived.
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and monotonic() > deadline:
                    self.close()
                    raise psycopg.OperationalError("it did not answer in time")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


def _connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    deadline = _deadline.get()
    if deadline is not None:
        left = deadline - monotonic()
        if left <= 0:
            raise psycopg.OperationalError("it did not answer in time")
        seconds = max(LEAST_CONNECT_TIMEOUT_SECONDS, int(min(left, CONNECT_TIMEOUT_SECONDS)))
        options = {**options, "connect_timeout": seconds}
    return _BoundedConnection.connect(*arguments, **options)
