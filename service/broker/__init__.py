"""The Redis broker: keys, scripts, consumer, settling. `from service.broker import broker` is the configured one.

`broker` is made when it is first asked for, with the chain of `service.middleware`. That room stands above this one,
so it is named here, not imported: as with a setting, the name is looked up at run time.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from service.broker.redis_broker import RedisBroker
from service.settings import get_settings

if TYPE_CHECKING:
    broker: RedisBroker

__all__ = ["RedisBroker", "broker"]

CHAIN = "service.middleware"


@cache
def _configured() -> RedisBroker:
    return RedisBroker(get_settings, middleware=import_module(CHAIN).chain())


def __getattr__(name: str) -> RedisBroker:
    if name == "broker":
        return _configured()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
