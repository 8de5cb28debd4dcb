"""Servers that the user named: asked once before anything is started, so that a wrong address is told at once."""

from urllib.parse import urlsplit

from service.cli.failure import CommandFailed
from service.settings import mask

TIMEOUT_SECONDS = 5


def check_redis(url: str) -> None:
    """Raise CommandFailed if the server can't be used."""
    import redis

    try:
        with redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            url, socket_connect_timeout=TIMEOUT_SECONDS, socket_timeout=TIMEOUT_SECONDS
        ) as client:
            client.ping()  # pyright: ignore[reportUnknownMemberType]
    except (redis.RedisError, OSError, ValueError) as error:
        raise CommandFailed(_message("Redis", "REDIS_URL", url, 6379, error)) from None


def check_postgres(url: str) -> None:
    """Raise CommandFailed if the database can't be used."""
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=TIMEOUT_SECONDS).close()
    except psycopg.Error as error:
        raise CommandFailed(_message("PostgreSQL", "DATABASE_URL", url, 5432, error)) from None


def address(url: str, default_port: int) -> str:
    """Return a URL's host and port, or its path for a Unix socket."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or default_port}" if parts.hostname else parts.path
    except ValueError:
        return mask(url)


def _message(server: str, variable: str, url: str, default_port: int, error: Exception) -> str:
    why = " ".join(mask(error).split())
    return (
        f"{server} at {address(url, default_port)} can't be used: {why}\n"
        f"{variable}={mask(url)!r} names it. Start that server or correct the address; without {variable}, "
        "`callboard up` starts a server of its own."
    )
