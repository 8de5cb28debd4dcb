"""Text that PostgreSQL does not hold, wherever a job has it: it never keeps a job's state from being stored."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from sqlalchemy import Engine, select

from service.api.app import build_app
from service.broker import RedisBroker
from service.errors import PayloadError
from service.job import Job, current_job
from service.state.database import engine_for
from service.state.history import History
from service.state.projector import Projector
from service.state.tables import jobs
from tests.api.conftest import Api, serve
from tests.servers import eventually

__all__ = ["serve"]

NUL, HALF, LITERAL = "a\x00b", "a\ud800b", "a\\u0000b \\ud800"
ODD = {"nul": NUL, "half-of-a-pair": HALF, "literal": LITERAL}
#: Readable, and what neither JSON nor PostgreSQL refuses.
ESCAPED = {NUL: "a\\u0000b", HALF: "a\\ud800b", LITERAL: LITERAL}
BOUND_SECONDS = 2.0


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = engine_for(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def seen() -> dict[str, Any]:
    return {}


@pytest.fixture
def running(
    broker: RedisBroker, engine: Engine, start_worker: Callable[..., Any], seen: dict[str, Any]
) -> Iterator[None]:
    """A worker, and a projector that works on this database."""

    @dramatiq.actor(broker=broker, actor_name="odd.text", actor_class=Job, max_retries=0)
    def odd(*, place: str, which: str = "literal", data: Any = None) -> Any:
        text = ODD[which]
        seen["data"] = data
        if place == "result":
            return text
        if place == "key of the result":
            return {text: {"inside": [text]}}
        if place == "error":
            raise ValueError(text)
        if place == "log":
            current_job().log(text, field=text)
        if place == "progress":
            current_job().progress(1, 2, text)
        if place == "checkpoint":
            current_job().checkpoint({text: text})
        return "done"

    stop = threading.Event()
    projector = threading.Thread(target=Projector(broker, engine).run, args=(stop,))
    projector.start()
    start_worker()
    yield
    stop.set()
    projector.join(20)


@pytest.fixture
def api(broker: RedisBroker, engine: Engine, running: None, serve: Callable[[Any], Api]) -> Api:
    return serve(build_app(broker, History(engine, broker)))


def stored_end(engine: Engine, job_id: str) -> Any:
    """The row of a job that has ended, which is there in time."""
    started = time.monotonic()
    found: list[Any] = []

    def ended() -> bool:
        with engine.connect() as connection:
            found[:] = connection.execute(select(jobs).where(jobs.c.job_id == job_id)).all()
        return bool(found) and found[0].state in ("succeeded", "dead")

    # A busy machine may be slow; what hangs is not over by then either.
    eventually(ended, BOUND_SECONDS * 5)
    assert time.monotonic() - started < BOUND_SECONDS * 5
    return found[0]


@pytest.mark.parametrize("which", ODD)
@pytest.mark.parametrize("place", ["result", "key of the result", "error", "log", "progress", "checkpoint"])
def test_what_a_job_says_never_keeps_its_end_from_being_stored(
    api: Api, broker: RedisBroker, engine: Engine, place: str, which: str
) -> None:
    sent = api.ask("POST", "/jobs", json={"type": "odd.text", "payload": {"place": place, "which": which}})
    row = stored_end(engine, sent.body["job_id"])
    escaped = ESCAPED[ODD[which]]
    shown = api.get(f"/jobs/{sent.body['job_id']}").body
    if place == "error":
        assert (row.state, row.error["message"], shown["error"]["message"]) == ("dead", escaped, escaped)
    else:
        expected: Any = {"result": escaped, "key of the result": {escaped: {"inside": [escaped]}}}.get(place, "done")
        assert (row.state, row.result, shown["result"]) == ("succeeded", expected, expected)


@pytest.mark.parametrize("which", ODD)
@pytest.mark.parametrize("place", ["value", "key", "deep"])
def test_an_argument_is_refused_or_arrives_as_it_was(
    api: Api, broker: RedisBroker, engine: Engine, seen: dict[str, Any], place: str, which: str
) -> None:
    text = ODD[which]
    data: Any = {"value": text, "key": {text: 1}, "deep": [{"a": [{text: text}]}]}[place]
    body = json.dumps({"type": "odd.text", "payload": {"place": "argument", "data": data}})
    answer = api.ask("POST", "/jobs", content=body, headers={"Content-Type": "application/json"})
    actor: Any = broker.get_actor("odd.text")
    if answer.status == 422:
        assert which != "literal"
        with pytest.raises((PayloadError, ValueError)):
            actor.send(place="argument", data=data)
    else:
        assert answer.status == 202, answer.body
        assert stored_end(engine, answer.body["job_id"]).state == "succeeded"
        assert seen["data"] == data
        job_id = actor.send(place="argument", data=data).message_id
        assert stored_end(engine, job_id).state == "succeeded"
        assert seen["data"] == data


@pytest.mark.parametrize("option", ["tenant", "traceparent", "idempotency_key", "unique_key"])
@pytest.mark.parametrize("which", ODD)
def test_a_tag_is_refused_or_harms_nothing(
    broker: RedisBroker, engine: Engine, running: None, option: str, which: str
) -> None:
    actor: Any = broker.get_actor("odd.text")
    try:
        message = actor.send_with_options(kwargs={"place": "tag"}, **{option: ODD[which]})
    except (PayloadError, ValueError):
        assert which != "literal"
        return
    assert stored_end(engine, message.message_id).state == "succeeded"
