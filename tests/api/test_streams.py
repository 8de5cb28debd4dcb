"""`GET /jobs/{id}/events`: what happens to a job, as it happens, and nothing left behind when the client goes."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dramatiq
import pytest
from dramatiq.worker import Worker
from fastapi import FastAPI

from service.api import followers
from service.api.app import build_app
from service.broker import RedisBroker
from service.job import Job, current_job
from service.state.database import engine_for
from service.state.history import History
from service.state.projector import Projector
from tests.api.conftest import Api
from tests.servers import eventually


class Sent(NamedTuple):
    """A server-sent event."""

    id: str
    event: str
    data: dict[str, Any]


def events_in(text: str) -> list[Sent]:
    found: list[Sent] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append(Sent(fields["id"], fields["event"], json.loads(fields["data"])))
    return found


@pytest.fixture
def may_end(broker: RedisBroker) -> threading.Event:
    may_end = threading.Event()

    @dramatiq.actor(broker=broker, actor_name="count.up", actor_class=Job, max_retries=0)
    def count(*, n: int) -> int:
        current_job().log("begun", n=n)
        current_job().progress(n, 10)
        assert may_end.wait(60)
        current_job().log("ended")
        return n

    return may_end


@pytest.fixture
def app(broker: RedisBroker, database_url: str, may_end: threading.Event) -> FastAPI:
    return build_app(broker, History(engine_for(database_url), broker))


@pytest.fixture
def api(app: FastAPI, serve: Callable[[Any], Api]) -> Api:
    return serve(app)


@pytest.fixture
def _projector(broker: RedisBroker, database_url: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Projector(broker, engine_for(database_url)).run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join(20)


@pytest.mark.usefixtures("_projector")
def test_a_stream_tells_each_step_and_ends_with_the_job(
    api: Api, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    job_id = api.send(n=7).body["job_id"]
    seen = ""
    with api.client.stream("GET", f"/jobs/{job_id}/events", timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for chunk in answer.iter_text():
            seen += chunk
            if "event: progress" in seen and "event: log" in seen:
                may_end.set()
    sent = events_in(seen)
    assert [each.data["state"] for each in sent if each.event == "state"] == ["pending", "running", "succeeded"]
    assert {each.event for each in sent} == {"state", "log", "progress"}
    [progress] = [each.data["data"] for each in sent if each.event == "progress"]
    assert (progress["done"], progress["total"]) == (7, 10)
    # What it said last is told too, though it takes its own way and comes behind the end.
    last = [each.data["data"] for each in sent if each.event == "log"][-1]
    assert last[-1]["message"] == "ended"
    ids = [tuple(map(int, each.id.split("-"))) for each in sent]
    assert ids == sorted(set(ids))

    # Who comes again says what it has seen, and misses and repeats nothing.
    for number in range(len(sent) - 1):
        again = api.ask("GET", f"/jobs/{job_id}/events", headers={"Last-Event-ID": sent[number].id})
        assert events_in(again.body) == sent[number + 1 :]


@pytest.mark.parametrize("mark", ["x", "1", "1-", "-1-0", "9999999999999999999999-0", "²-0"])
def test_a_mark_that_is_none_is_refused(api: Api, mark: str) -> None:
    job_id = api.send().body["job_id"]
    answer = api.ask("GET", f"/jobs/{job_id}/events", headers={"Last-Event-ID": mark.encode()})
    assert (answer.status, answer.body["errors"][0]["field"]) == (422, "Last-Event-ID")


def test_a_job_of_nobody_has_no_stream(api: Api) -> None:
    assert api.get("/jobs/00000000-0000-0000-0000-000000000000/events").status == 404
    assert api.get("/jobs/x/events").status == 404


def open_stream(api: Api, job_id: str) -> socket.socket:
    host, _, port = api.url.removeprefix("http://").partition(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(f"GET /jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_clients_that_go_before_the_first_byte_leave_nothing_behind(
    api: Api, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "MOST_STREAMS", 20)
    monkeypatch.setattr(followers, "PING_SECONDS", 0.5)
    job_id = api.send().body["job_id"]
    for _ in range(21):
        reset(open_stream(api, job_id))
    eventually(lambda: app.state.followers.count == 0)
    with api.client.stream("GET", f"/jobs/{job_id}/events") as answer:
        assert answer.status_code == 200
    eventually(lambda: app.state.followers.count == 0)
    eventually(lambda: not app.state.followers.is_looking)


def test_more_streams_than_there_may_be_are_refused(api: Api, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "MOST_STREAMS", 3)
    monkeypatch.setattr(followers, "PING_SECONDS", 0.5)
    job_id = api.send().body["job_id"]
    streams = [open_stream(api, job_id) for _ in range(3)]
    eventually(lambda: app.state.followers.count == 3)
    refused = api.get(f"/jobs/{job_id}/events")
    assert (refused.status, refused.body["type"]) == (503, "urn:callboard:problem:busy")
    for each in streams:
        each.close()
    eventually(lambda: app.state.followers.count == 0)


def test_clients_that_close_a_silent_stream_are_noticed(
    api: Api, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PING_SECONDS", 0.5)
    job_id = api.send().body["job_id"]
    streams = [open_stream(api, job_id) for _ in range(50)]
    eventually(lambda: app.state.followers.count == 50)
    for each in streams:
        each.close()
    eventually(lambda: app.state.followers.count == 0)
    eventually(lambda: not app.state.followers.is_looking)


@pytest.mark.usefixtures("_projector")
def test_a_stream_ends_also_where_the_end_was_not_the_last_that_was_told(
    api: Api, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    may_end.set()
    start_worker()
    job_id = api.send(n=7).body["job_id"]
    # What a job has logged goes its own way, and may arrive behind its end.
    eventually(lambda: "log" in {each["kind"] for each in api.get(f"/jobs/{job_id}/timeline").body["events"]})
    eventually(lambda: api.get(f"/jobs/{job_id}").body["is_terminal"])
    kinds = [each["kind"] for each in api.get(f"/jobs/{job_id}/timeline").body["events"]]
    answer = api.ask("GET", f"/jobs/{job_id}/events", timeout=5)
    assert len(events_in(answer.body)) == len(kinds)
    assert kinds.index("settled") < kinds.index("log"), "else this test shows nothing"


@pytest.mark.usefixtures("_projector")
def test_who_has_seen_the_end_is_told_to_come_no_more(
    api: Api, may_end: threading.Event, start_worker: Callable[..., Worker]
) -> None:
    may_end.set()
    start_worker()
    job_id = api.send(n=7).body["job_id"]
    seen = events_in(api.ask("GET", f"/jobs/{job_id}/events", timeout=10).body)
    eventually(lambda: api.get(f"/jobs/{job_id}").body["is_terminal"])
    again = api.ask("GET", f"/jobs/{job_id}/events", headers={"Last-Event-ID": seen[-1].id}, timeout=5)
    assert (again.status, again.body) == (204, "")
