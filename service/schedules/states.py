"""Where schedulers and the API share the states of schedules: a key of Redis for each, replaced only if unchanged."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import redis

from service.broker import RedisBroker
from service.schedules.state import ScheduleState

#: For so long a deleted schedule is known as such to schedulers that have an old copy of it.
DELETED_SECONDS = 24 * 3600


class Stored(NamedTuple):
    """A state with its text in Redis: empty where there is none."""

    text: bytes
    state: ScheduleState | None


class States:
    """Reads and replaces states. Every method raises BrokerUnavailable."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def read(self, name: str) -> Stored:
        """Return what is known of a schedule."""
        return self.read_many([name])[name]

    def read_many(self, names: Iterable[str]) -> Mapping[str, Stored]:
        """Return what is known of schedules."""
        names = list(names)
        if not names:
            return {}
        found = self._ask(lambda: self._broker.client.mget([self._key(name) for name in names]))
        return {name: _read(text) for name, text in zip(names, found, strict=True)}

    def replace(self, name: str, before: Stored, after: ScheduleState) -> bool:
        """Store a state where it is still the one that was read. Returns whether it was."""
        key = self._key(name)

        def in_one_step() -> bool:
            with self._broker.client.pipeline(transaction=True) as pipeline:
                pipeline.watch(key)
                if (pipeline.get(key) or b"") != before.text:
                    return False
                pipeline.multi()
                pipeline.set(key, after.to_json(), ex=DELETED_SECONDS if after.is_deleted else None)
                try:
                    pipeline.execute()
                except redis.WatchError:
                    return False
                return True

        return self._ask(in_one_step)

    def change(self, name: str, change: Callable[[ScheduleState | None], ScheduleState | None]) -> ScheduleState | None:
        """Replace a state by what `change` makes of it, again and again until nobody came between.

        `change` returns None to leave it. Returns the state that is stored then.
        """
        while True:
            before = self.read(name)
            after = change(before.state)
            if after is None:
                return before.state
            if self.replace(name, before, after):
                return after

    def _key(self, name: str) -> str:
        return f"{{{self._broker.namespace}:schedules}}:state:{name}"

    def _ask(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as error:
            raise self._broker.unavailable(error) from error


def _read(text: bytes | None) -> Stored:
    if not text:
        return Stored(b"", None)
    try:
        return Stored(text, ScheduleState.from_json(text))
    except ValueError:
        return Stored(text, None)  # replaced by what schedulers and the database know
