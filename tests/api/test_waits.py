"""`GET /jobs/{id}?wait=`: answered when the job has ended, whoever knows of it, and else when the time is over."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
from dramatiq.worker import Worker

from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job
from service.state.database import engine_for
from service.state.history import History
from service.state.projector import Projector
from tests.api.conftest import Answer, Api
from tests.servers import eventually


@pytest.fixture
def may_end(broker: RedisBroker) -> threading.Event:
    may_end = threading.Event()

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job)
    def count(*, n: int) -> int:
        assert may_end.wait(30)
        return n

    return may_end


@pytest.fixture
def api(broker: RedisBroker, database_url: str, may_end: threading.Event, serve: Callable[[Any], Api]) -> Api:
    return serve(build_app(broker, History(engine_for(database_url), broker)))


def test_a_request_waits_until_its_job_has_ended(
    api: Api, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    path = api.send(n=7).body["poll_url"]
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(api.get, f"{path}?wait=30") for _ in range(20)]
        time.sleep(0.5)
        assert not any(each.done() for each in waiting)
        may_end.set()
        answers = [each.result() for each in waiting]
    assert {(answer.status, answer.body["status"], answer.body["result"]) for answer in answers} == {
        (200, "succeeded", 7)
    }
    assert max(answer.seconds for answer in answers) < 10


def test_what_the_projector_has_stored_meanwhile_is_seen_too(
    api: Api, broker: RedisBroker, database_url: str, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    engine = engine_for(database_url)
    stop = threading.Event()
    projector = threading.Thread(target=Projector(broker, engine).run, args=(stop,))
    projector.start()
    try:
        start_worker()
        paths = [api.send(n=number).body["poll_url"] for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(api.get, f"{path}?wait=30") for path in paths]
            time.sleep(0.5)
            may_end.set()
            assert sorted(each.result().body["result"] for each in waiting) == list(range(8))
    finally:
        stop.set()
        projector.join(20)


def test_a_job_that_does_not_end_is_shown_when_the_time_is_over(api: Api) -> None:
    path = api.send().body["poll_url"]
    answer = api.get(f"{path}?wait=0.7")
    assert (answer.status, answer.body["state"]) == (200, "pending")
    assert 0.7 <= answer.seconds < 5


def test_what_has_ended_or_is_unknown_is_answered_at_once(
    api: Api, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    may_end.set()
    start_worker()
    path = api.send().body["poll_url"]
    eventually(lambda: api.get(path).body["is_terminal"])
    for asked, status in ((path, 200), ("/jobs/00000000-0000-0000-0000-000000000000", 404)):
        answer = api.get(f"{asked}?wait=30")
        assert (answer.status, answer.seconds < 5) == (status, True)


@pytest.mark.parametrize("wait", ["-1", "61", "x", "nan", "inf"])
def test_another_time_is_refused(api: Api, wait: str) -> None:
    answer: Answer = api.get(f"{api.send().body['poll_url']}?wait={wait}")
    assert answer.status == 422
    assert answer.body["errors"][0]["field"] == "query.wait"


def test_a_wait_that_is_over_leaves_nothing_behind(
    broker: RedisBroker, database_url: str, may_end: threading.Event, serve: Callable[[Any], Api]
) -> None:
    app = build_app(broker, History(engine_for(database_url), broker))
    api = serve(app)
    path = api.send().body["poll_url"]
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(api.get, f"{path}?wait=2") for _ in range(10)]
        eventually(lambda: app.state.waits.count == 10)
        assert app.state.waits.is_looking
        assert {answer.result().status for answer in answers} == {200}
    assert app.state.waits.count == 0
    eventually(lambda: not app.state.waits.is_looking)


def test_clients_that_have_gone_keep_no_place(
    broker: RedisBroker, database_url: str, may_end: threading.Event, serve: Callable[[Any], Api]
) -> None:
    app = build_app(broker, History(engine_for(database_url), broker))
    api = serve(app)
    path = api.send().body["poll_url"]
    host, _, port = api.url.removeprefix("http://").partition(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(10)]
    for client in clients:
        client.sendall(f"GET {path}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    eventually(lambda: app.state.waits.count == 10)
    for client in clients:
        client.close()
    eventually(lambda: app.state.waits.count == 0, 5)
