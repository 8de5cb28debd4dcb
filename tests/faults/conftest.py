"""The fault tests use the processes of the end-to-end tests, some of them through a proxy."""

from collections.abc import Iterator

import pytest

from service.broker import RedisBroker
from tests.brokers import broker_at
from tests.e2e.conftest import Service, service, whole_service  # noqa: F401
from tests.proxy import Proxy, proxy_to
from tests.servers import RedisServer


@pytest.fixture
def proxy(service: Service, redis_server: RedisServer) -> Iterator[Proxy]:  # noqa: F811
    """Stands between the processes of the service and the server. The test's own `broker` goes straight there."""
    with proxy_to(redis_server.port) as proxy:
        service.environment["REDIS_URL"] = proxy.url
        yield proxy


@pytest.fixture
def sender(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBroker]:
    """A broker of this process that goes through the proxy too."""
    with broker_at(proxy.url, monkeypatch) as sender:
        yield sender
