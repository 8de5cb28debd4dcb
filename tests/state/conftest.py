"""The tests of job state run on every PostgreSQL that the machine has."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from service.state.database import engine_for
from service.state.migrate import upgrade
from tests.servers import new_database, postgres_flavours, postgres_server


@pytest.fixture(scope="session", params=postgres_flavours().items(), ids=lambda item: item[0])
def postgres_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server with one migrated database to copy."""
    with postgres_server(tmp_path_factory.mktemp("postgres"), request.param[1]) as url:
        upgrade(new_database(url, "migrated"))
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine for an empty, migrated database."""
    engine = engine_for(database_url)
    yield engine
    engine.dispose()
