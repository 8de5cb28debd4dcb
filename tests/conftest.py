"""The servers and settings that tests share. Each test gets a namespace and a database of its own."""

import logging
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from dramatiq.worker import Worker

from service.broker import RedisBroker
from service.middleware import chain
from service.settings import Settings, get_settings
from service.state.migrate import upgrade
from tests.servers import RedisServer, free_port, new_database, postgres_server, redis_flavours

#: Their tests start the whole service on its usual ports: one after another.
ON_USUAL_PORTS = {"up", "docs"}


# First: xdist reads the groups in the same hook, and a mark that comes after it groups nothing.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    alone = [item for item in items if ON_USUAL_PORTS & set(item.path.parts)]
    for item in alone:
        item.add_marker(pytest.mark.xdist_group("usual-ports"))
    # First: they are the longest row, and the others run beside them.
    items.sort(key=lambda item: item not in alone)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what a test has logged fit for the way to the process that reports: half of a surrogate pair ends it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server that most tests share. A test that kills or freezes it starts one of its own."""
    program = next(iter(redis_flavours().values()))
    server = RedisServer(program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test, to be treated badly."""
    server = RedisServer(next(iter(redis_flavours().values())), tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server with one migrated database to copy."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        upgrade(new_database(url, "migrated"))
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> str:
    """An empty, migrated database."""
    return new_database(postgres_url, f"test_{uuid.uuid4().hex}", template="migrated")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> dict[str, str]:
    """The variables of a process of the service, set for this one too. Without a database: ask for database_url."""
    variables = {
        "REDIS_URL": redis_server.url,
        "CALLBOARD_NAMESPACE": f"test-{uuid.uuid4().hex[:12]}",
        "CALLBOARD_WORKER_PORT": str(free_port()),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    return variables


@pytest.fixture
def settings(environment: dict[str, str]) -> Settings:
    """The settings of that environment."""
    return get_settings()


@pytest.fixture
def broker(settings: Settings) -> Iterator[RedisBroker]:
    """A broker with the whole chain, for actors that the test declares."""
    broker = RedisBroker(lambda: settings, chain())
    yield broker
    broker.close()


@pytest.fixture
def start_worker(broker: RedisBroker) -> Iterator[Callable[..., Worker]]:
    """Start Dramatiq's worker on the broker, in this process. The actors must be declared before."""
    workers: list[Worker] = []

    def start(threads: int = 4) -> Worker:
        broker.emit_after("process_boot")  # as the dramatiq command does: the time limits' clock starts here
        worker = Worker(broker, worker_timeout=100, worker_threads=threads)
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop(timeout=5000)


@pytest.fixture(autouse=True)
def _fresh_settings() -> Iterator[None]:
    yield
    get_settings.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_logs() -> Iterator[None]:
    """Take back what a command that ran in this process has set up for the logs of all that follow."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
