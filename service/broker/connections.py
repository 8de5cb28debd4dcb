"""Connections that say when a command was certainly not carried out, and that leave a server made a replica."""

from typing import Any

import redis


class NotCarriedOut(redis.ConnectionError):
    """Nothing was done: there was no connection, or it led to a replica."""


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
