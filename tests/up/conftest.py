from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.up.external_redis import ExternalRedis
from tests.up.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean()
    assert home.processes() == []


@pytest.fixture
def external_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalRedis]:
    server = ExternalRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.process.kill()
    server.process.wait()
