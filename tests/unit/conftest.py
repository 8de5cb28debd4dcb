"""What the unit tests share: an environment without settings, and a broker that reaches nothing."""

import os
from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from service.middleware import chain
from service.settings import get_settings, load_settings


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.upper().startswith("CALLBOARD_") or name.upper() in ("REDIS_URL", "DATABASE_URL"):
            monkeypatch.delenv(name)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> RedisBroker:
    """A fresh broker under `@job`, so that actors of one test are unknown to the next. It has no Redis."""
    fresh = RedisBroker(load_settings, middleware=chain())
    monkeypatch.setattr("service.job.broker", fresh)
    return fresh
