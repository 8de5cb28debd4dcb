"""The table is the same in whatever order, how often and in whatever batches the events of jobs are told."""

import json
import random
import uuid
from typing import Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, select

from service.state.event import Event, Head, read
from service.state.store import store
from service.state.tables import events, jobs

CREATED = 1_700_000_000_000
ENDS = ("succeeded", "dead", "cancelled")


def message_of(job_id: str, number: int) -> bytes:
    options = {"tenant": "acme", "parent_id": str(uuid.UUID(int=7))}
    fields = {"queue_name": "email", "actor_name": "t.act", "args": [], "kwargs": {"n": number}, "options": options}
    return json.dumps({**fields, "message_id": job_id, "message_timestamp": CREATED}).encode()


def sent(kind: str, delay: str = "-", priority: int = 5, key: str = "k") -> Any:
    def make(job_id: str, number: int) -> tuple[str, str | None, bytes]:
        head = f"{delay} {CREATED} 1 3 t.act\t{key}\t{priority}\n".encode()
        return kind, None, head + message_of(job_id, number)

    return make


def started(attempt: int, kind: str = "started") -> Any:
    return lambda job_id, number: (kind, f"host:{number}", f"- {CREATED} {attempt} 3 t.act\tk".encode())


def settled(state: str, attempt: int, **more: str) -> Any:
    def make(job_id: str, number: int) -> tuple[str, str | None, bytes]:
        known = {"state": state, "type": "t.act", "attempt": str(attempt), "created_at": str(CREATED), **more}
        return "settled", None, json.dumps({**known, "started_at": str(CREATED + number)}).encode()

    return make


def note(kind: str) -> Any:
    return lambda job_id, number: (kind, None, f'{CREATED} 1 {{"done": {number}}}'.encode())


ERROR = json.dumps({"type": "E", "message": "n\x00 \ud800 \\u0000", "traceback": "t"})
STORIES = (
    [sent("sent"), started(1), settled("succeeded", 1, result='{"b": 1, "a": "\\u0000"}')],
    [
        *(sent("sent", delay="5"), started(1), note("progress"), settled("retrying", 1, error=ERROR, delay_ms="50")),
        *(started(2), note("log"), settled("dead", 2, error=ERROR, reason="failed")),
        *(sent("replayed", priority=3), started(1), settled("succeeded", 1, result="7")),
    ],
    [sent("sent"), started(1, "waiting"), started(1), settled("pending", 1), started(1), settled("cancelled", 1)],
    # An operator gives it another priority and time; after its end, a copy of it tells on.
    [
        *(sent("sent"), settled("scheduled", 0, priority="0", run_at=str(CREATED + 9999)), started(1)),
        *(settled("succeeded", 1, result="null"), started(1), note("log"), settled("succeeded", 1, result="2")),
    ],
    [sent("sent"), started(1), settled("dead", 1, error=ERROR), sent("replayed"), started(1), settled("dead", 1)],
)


def told(story: list[Any], job_id: str) -> list[Event]:
    found: list[Event] = []
    for number, make in enumerate(story, start=1):
        kind, worker, value = make(job_id, number)
        event = read(Head(number << 20, kind, str(CREATED + 10 * number), worker, "email"), job_id, value)
        assert event is not None
        found.append(event)
    return found


def in_tables(connection: Connection, job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    where = uuid.UUID(job_id)
    row = dict(connection.execute(select(jobs).where(jobs.c.job_id == where)).mappings().one())
    found = connection.execute(select(events).where(events.c.job_id == where).order_by(events.c.sequence))
    timeline = [dict(each) for each in found.mappings()]
    for each in (row, *timeline):
        del each["job_id"]
    row["message"] = json.loads(row["message"])["kwargs"]
    return row, timeline


@given(data=st.data())
@hypothesis_settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_any_repetition_and_any_batches_end_in_the_same_tables(data: st.DataObject, engine: Engine) -> None:
    stories = [data.draw(st.sampled_from(STORIES)) for _ in range(data.draw(st.integers(1, 4)))]
    ids = [str(uuid.uuid4()) for _ in stories]
    everything = [event for story, job_id in zip(stories, ids, strict=True) for event in told(story, job_id)]
    # Of a job that nobody knows yet, a note is no event: its send stands before it in the same stream.
    first = {job_id: told(story, job_id)[0] for story, job_id in zip(stories, ids, strict=True)}
    everything += data.draw(st.lists(st.sampled_from(everything), max_size=8))
    random.Random(data.draw(st.integers())).shuffle(everything)
    with engine.connect() as connection:
        batch: list[Event] = []
        seen: set[str] = set()
        for event in everything:
            if event.state is None and event.job_id not in seen:
                batch.append(first[event.job_id])
            seen.add(event.job_id)
            batch.append(event)
            if data.draw(st.booleans()):
                store(connection, batch)
                batch = []
        if batch:
            store(connection, batch)
        for story, job_id in zip(stories, ids, strict=True):
            straight = str(uuid.uuid4())
            store(connection, told(story, straight))
            assert in_tables(connection, job_id) == in_tables(connection, straight)


def test_what_the_database_refuses_of_one_job_does_not_hold_up_the_others(engine: Engine, caplog: Any) -> None:
    good = [str(uuid.uuid4()) for _ in range(7)]
    bad = str(uuid.uuid4())
    batch = [event for job_id in [*good[:3], bad, *good[3:]] for event in told(STORIES[0], job_id)]
    for event in batch:
        if event.job_id == bad and event.kind == "sent":
            event.payload = '{"n": 1e200000}'  # JSON, and more than a number of the database can be
    with engine.connect() as connection:
        store(connection, batch)
        stored = connection.execute(select(jobs.c.job_id, jobs.c.state)).all()
    assert {str(row.job_id) for row in stored} == set(good)
    assert {row.state for row in stored} == {"succeeded"}
    assert [record.job_id for record in caplog.records if "can't be stored" in record.getMessage()] == [bad]
