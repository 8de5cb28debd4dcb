"""What the tests of the API share: an application served over a real socket, and requests that are timed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import uvicorn
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.state.database import engine_for
from service.state.projector import Projector
from tests.servers import eventually, free_port


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    seconds: float
    content_type: str


class Api:
    """A client of one served application."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx2.Client(base_url=url, timeout=30, limits=httpx2.Limits(max_connections=400))

    def ask(self, method: str, path: str, **request: Any) -> Answer:
        started = time.monotonic()
        answer = self.client.request(method, path, **request)
        seconds = time.monotonic() - started
        is_json = "json" in answer.headers.get("content-type", "")
        body = answer.json() if is_json else answer.text
        return Answer(answer.status_code, body, seconds, answer.headers.get("content-type", ""))

    def send(self, **payload: Any) -> Answer:
        return self.ask("POST", "/jobs", json={"type": "count.up", "payload": payload or {"n": 1}})

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)


def at_once(*calls: Callable[[], Answer]) -> list[Answer]:
    """Make requests together."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Api]]:
    """Serve an application from a thread."""
    running: list[tuple[uvicorn.Server, threading.Thread, Api]] = []

    def start(app: Any) -> Api:
        port = free_port()
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        eventually(lambda: server.started)
        api = Api(f"http://127.0.0.1:{port}")
        running.append((server, thread, api))
        return api

    yield start
    for server, thread, api in running:
        api.client.close()
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def engine(database_url: str) -> Engine:
    """The database of the test."""
    return engine_for(database_url)


@pytest.fixture
def project(broker: RedisBroker, engine: Engine) -> Callable[[], None]:
    """Store what has happened, as a projector does."""
    projector = Projector(broker, engine)

    def project() -> None:
        with engine.connect() as connection:
            while projector.project_batch(connection):
                pass

    return project
