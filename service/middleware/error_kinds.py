"""Which errors are worth another attempt: what the author states, and what is known of usual errors without it."""

from collections.abc import Iterable, Sequence

from service.errors import PayloadError, Permanent, RetryAfter, Snooze

type_of_error = type[BaseException]

#: What no author's statement can change: these say themselves how they are to be treated.
FINAL: tuple[type_of_error, ...] = (Permanent, PayloadError)
#: By the name of the class, or of one that it comes from: clients are told without being imported.
FINAL_NAMES = frozenset(
    {
        "ValidationError",  # pydantic, marshmallow, jsonschema, Django
        "AuthenticationError",  # redis, openai, stripe
        "AuthenticationFailed",
        "SMTPAuthenticationError",
        "PermissionDeniedError",  # openai
        "InvalidPassword",  # psycopg
        "CardError",  # stripe: declined
    }
)
PASSING_NAMES = frozenset(
    {
        "ConnectionError",  # Python itself, redis, requests
        "TimeoutError",  # Python itself, redis, urllib3
        "Timeout",  # requests
        "TransportError",  # httpx
        "ClientConnectionError",  # aiohttp
        "ProtocolError",  # urllib3
        "HTTPClientError",  # botocore
        "APIConnectionError",  # openai, stripe
        "OperationalError",  # psycopg, SQLAlchemy
        "SMTPServerDisconnected",
    }
)


def is_final(error: BaseException, retry_for: Iterable[type_of_error], permanent_for: Iterable[type_of_error]) -> bool:
    """Say whether no repetition can mend this error. Its nearest class of which anything is known decides.

    Where the author names what to retry, all that is not known as passing is final.
    """
    if isinstance(error, FINAL):
        return True
    retried, permanent = frozenset(retry_for), frozenset(permanent_for)
    if isinstance(error, RetryAfter):
        return False
    for kind in type(error).__mro__:
        if kind in permanent or (kind not in retried and kind.__name__ in FINAL_NAMES):
            return True
        if kind in retried or kind.__name__ in PASSING_NAMES:
            return False
    return bool(retried)


def contradiction(retry_for: Sequence[type_of_error], permanent_for: Sequence[type_of_error]) -> str | None:
    """Return what is wrong with an author's two lists, or None."""
    for name, kinds in (("retry_for", retry_for), ("permanent_for", permanent_for)):
        if not isinstance(kinds, tuple | list):
            return f"{name}={kinds!r} must be a tuple of classes"
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
                return f"{name} holds {kind!r}, which is no class of errors"
    for kind in retry_for:
        if kind in tuple(permanent_for):
            return f"{kind.__name__} is in retry_for and in permanent_for"
        if issubclass(kind, FINAL):
            return f"retry_for holds {kind.__name__}, which is never retried"
    for kind in permanent_for:
        if issubclass(kind, (RetryAfter, Snooze)):
            return f"permanent_for holds {kind.__name__}, which asks to run again"
    return None
