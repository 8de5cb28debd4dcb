"""What an error of Redis says of the command and of the server, and connections that leave a server made a replica."""

import re
from typing import Any

import redis

#: How an error begins that says what state the server is in, such as MISCONF or NOREPLICAS. The client's parser takes
#: ERR away, and has classes of their own for many others.
_SERVER_STATE = re.compile(r"(?!WRONGTYPE\b)[A-Z]{3,}\b")


class NotCarriedOut(redis.ConnectionError):
    """Nothing was done: there was no connection, or it led to a replica."""


def may_have_been_carried_out(error: redis.RedisError) -> bool:
    """Whether the server may have done what this error of a command is the answer to."""
    if isinstance(error, NotCarriedOut | redis.BusyLoadingError | redis.AuthenticationError):
        return False  # the last two are the server's own refusals, which the client counts as errors of the connection
    if "@user_script" in str(error):
        return True  # a command of a script was refused, and those before it were not
    # Only a connection that was there when the command went out leaves it open whether the server has done it.
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and " connecting to " not in str(error)


def is_outage(error: BaseException) -> bool:
    """Whether the same command may succeed later: its error is about the server or the way to it, not about itself."""
    if not isinstance(error, redis.RedisError):
        return False
    return type(error) is not redis.ResponseError or _SERVER_STATE.match(str(error)) is not None


def is_of_a_replica(error: Exception) -> bool:
    """Whether a reply's error says READONLY, also behind an ERR of a proxy, which the parser takes away."""
    return isinstance(error, redis.ReadOnlyError) or str(error).startswith("READONLY")


def leaving_replicas(connection_class: Any) -> Any:
    """Return a class of connections that close on READONLY.

    After a failover the old primary lives on as a replica, and connections to it stay healthy. The address leads to
    the new primary by now, but only a new connection goes there.
    """

    class LeavingReplicas(connection_class):
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return connection_class.read_response(self, *args, **kwargs)
            except redis.ResponseError as error:
                if not is_of_a_replica(error):
                    raise
                self.disconnect()
                raise NotCarriedOut(str(error)) from error

    return LeavingReplicas
