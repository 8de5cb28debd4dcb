"""Brokers of this process on servers that a test has of its own."""

import contextlib
from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from service.middleware import chain
from service.settings import load_settings


@contextlib.contextmanager
def broker_at(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """Make a broker with the whole chain on the server at `url`."""
    monkeypatch.setenv("REDIS_URL", url)
    settings = load_settings()
    broker = RedisBroker(lambda: settings, chain())
    yield broker
    broker.close()
