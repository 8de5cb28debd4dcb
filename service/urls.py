"""The URLs of Redis and PostgreSQL: what is wrong with one, told before a client tells it later and with the password.

Checking connects to nothing. Each check raises ValueError, whose text shows no password.
"""

import re
from typing import Any, cast
from urllib.parse import SplitResult, parse_qs, urlsplit

_ENCODED = "a password with special characters is written percent-encoded, / as %2F and @ as %40"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
#: What the service sets itself and relies on; an option in the URL would win.
_OURS = ("socket_timeout", "socket_connect_timeout", "decode_responses", "encoding", "encoding_errors", "retry")


def check_redis_url(url: str) -> None:
    """Raise ValueError for a URL that the Redis client would refuse, or misunderstand."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must start with redis://, rediss:// or unix://")
    parts = _split(url)
    if url.startswith("unix://"):
        if not parts.path.strip("/"):
            raise ValueError("must name the path of a socket, such as unix:///run/redis.sock")
    elif not parts.hostname:
        raise ValueError("must name a host")
    elif not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"must end with the number of a database, such as /0; {_ENCODED}")
    for option in parse_qs(parts.query, keep_blank_values=True):
        if option in _OURS:
            raise ValueError(f"the option {option!r} is the service's own (see CALLBOARD_REDIS_TIMEOUT_SECONDS)")
        if option == "max_connections":
            # At the limit the client fails at once, and takes its own limit for an outage.
            raise ValueError("leave max_connections out: each thread that uses Redis needs a connection of its own")

    import redis

    try:
        cast("Any", redis.ConnectionPool).from_url(url).make_connection()
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument ('\w+')", str(error))
        raise ValueError(f"unknown option {unknown[1]}" if unknown else "an option is wrong") from None
    except (ValueError, redis.RedisError) as error:
        raise ValueError(mask_url(str(error))) from None


def check_database_url(url: str) -> None:
    """Raise ValueError for a URL that the PostgreSQL driver would refuse, or misunderstand."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must start with postgresql://")
    parts = _split(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    if not parts.hostname and not {"host", "hostaddr", "service"} & options.keys():
        raise ValueError("must name a host, or a socket's folder as in postgresql:///callboard?host=/run/postgresql")
    for mode in options.get("sslmode", []):
        if mode not in _SSL_MODES:
            raise ValueError(f"sslmode={mode} is none of {', '.join(_SSL_MODES)}")
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        return  # a process without the driver does not use the database
    try:
        conninfo_to_dict(url)
    except psycopg.Error as error:
        raise ValueError(mask_url(str(error).strip())) from None


def mask_url(text: str, *, is_url: bool = False) -> str:
    """Return a text with the passwords of the URLs in it as `***`. `is_url`: the text is meant to be one."""
    text = re.sub(r"(?i)(password=)[^&\s]*", r"\1***", text)
    if is_url and "://" not in text:
        # Too wrong to tell which part of it is the password.
        return re.sub(r".*@", "***@", text, flags=re.DOTALL)
    # The last @ ends the user part: a password may hold one itself, unescaped, in a URL that is wrong.
    return re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", text)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"the port must be a number from 1 to 65535; {_ENCODED}") from None
    if parts.netloc.count("@") > 1 or "@" in parts.path:
        raise ValueError("an @ in the user or the password must be written %40")
    return parts
