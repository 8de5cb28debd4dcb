"""The time that schedules go by: that of the Redis server. The clocks of schedulers may differ, and jump."""

from collections.abc import Callable
from datetime import UTC, datetime

import redis

from service.broker import RedisBroker

Clock = Callable[[], datetime]


def clock_of(broker: RedisBroker) -> Clock:
    """Return a clock that asks Redis. It raises BrokerUnavailable."""

    def now() -> datetime:
        try:
            seconds, microseconds = broker.client.time()
        except redis.RedisError as error:
            raise broker.unavailable(error) from error
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)

    return now
