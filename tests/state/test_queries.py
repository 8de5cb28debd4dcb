"""Jobs are found by what a filter names, page by page, while others arrive."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from service.state.queries import Cursor, Filter, count_jobs, list_jobs, message_fields_of, timeline_of
from service.state.states import State
from service.state.store import store
from tests.state.stories import a_job

NOW = datetime.now(UTC)


def add(engine: Engine, state: str = "succeeded", age_seconds: float = 60, **about: Any) -> uuid.UUID:
    job_id = str(uuid.uuid4())
    with engine.connect() as connection:
        store(connection, a_job(job_id, state, NOW - timedelta(seconds=age_seconds), **about))
    return uuid.UUID(job_id)


def found(engine: Engine, **wanted: Any) -> set[uuid.UUID]:
    return {job.job_id for job in list_jobs(engine, Filter(**wanted)).jobs}


def test_pages_skip_and_repeat_nothing_while_jobs_arrive(engine: Engine) -> None:
    # Several of one millisecond, and some of days before, in other partitions.
    ages = [60, 60, 60, 61, 62, 90_000, 90_000, 200_000, 40_000_000]
    there = {add(engine, age_seconds=age) for age in ages}
    seen: list[uuid.UUID] = []
    cursor: Cursor | None = None
    while True:
        page = list_jobs(engine, Filter(), cursor, limit=2)
        seen += [job.job_id for job in page.jobs]
        add(engine, age_seconds=0)
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen))
    assert set(seen) == there


@pytest.mark.parametrize(
    ("about", "wanted", "other"),
    [
        (
            {"state": "dead"},
            {"states": frozenset({State.DEAD, State.CANCELLED})},
            {"states": frozenset({State.RUNNING})},
        ),
        ({"actor": "t.other"}, {"actor": "t.other"}, {"actor": "t.othe"}),
        ({"queue": "ai"}, {"queue": "ai"}, {"queue": "media"}),
        ({"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "acm"}),
        ({"key": "order:7"}, {"key": "order:7"}, {"key": "order:"}),
        ({"payload": {"n": 7, "to": "ada"}}, {"payload": {"n": 7}}, {"payload": {"n": "7"}}),
        ({"payload": {"a": {"b": [1, "ü\x00"]}}}, {"payload": {"a": {"b": ["ü\\u0000"]}}}, {"payload": {"b": [1]}}),
        ({"payload": {"a\x00": "b\x00"}}, {"payload": {"a\x00": "b\x00"}}, {"payload": {"a\x00": "b"}}),
        (
            {"age_seconds": 600},
            {"created_from": NOW - timedelta(seconds=700), "created_before": NOW - timedelta(seconds=500)},
            {"created_before": NOW - timedelta(seconds=601)},
        ),
        (
            {"age_seconds": 600},
            {"ended_from": NOW - timedelta(seconds=600), "ended_before": NOW - timedelta(seconds=590)},
            {"ended_from": NOW},
        ),
    ],
    ids=["state", "actor", "queue", "tenant", "key", "payload", "payload-inside", "payload-nul", "created", "ended"],
)
def test_a_filter_takes_what_fits_and_nothing_else(
    engine: Engine, about: dict[str, Any], wanted: dict[str, Any], other: dict[str, Any]
) -> None:
    job_id = add(engine, **about)
    add(engine)
    assert found(engine, **wanted) == {job_id}
    assert job_id not in found(engine, **other)
    assert (count_jobs(engine, Filter(**wanted)).number, count_jobs(engine, Filter()).number) == (1, 2)


def test_a_count_stops(engine: Engine) -> None:
    for _ in range(4):
        add(engine)
    assert (count_jobs(engine, Filter(), most=3).number, count_jobs(engine, Filter(), most=3).is_exact) == (3, False)
    assert count_jobs(engine, Filter(), most=4).is_exact


def test_a_payload_is_found_by_its_index(engine: Engine) -> None:
    add(engine, payload={"order": 1})
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = connection.execute(
            text("""EXPLAIN SELECT job_id FROM callboard_jobs WHERE payload @> '{"order": 1}'""")
        ).scalars()
        assert "payload_idx" in "\n".join(plan)


def test_a_timeline_has_every_step_in_order(engine: Engine) -> None:
    job_id = add(engine, state="dead")
    moments = timeline_of(engine, job_id)
    assert [(moment.kind, moment.state, moment.attempt) for moment in moments] == [
        ("sent", State.PENDING, 0),
        ("started", State.RUNNING, 1),
        ("settled", State.DEAD, 1),
    ]
    assert moments[1].worker == "host:1:a"
    assert moments[0].at < moments[1].at < moments[2].at
    assert timeline_of(engine, uuid.uuid4()) == []


def test_the_message_is_kept_as_it_was_sent(engine: Engine) -> None:
    fields = message_fields_of(engine, add(engine, payload={"text": "a\x00b"}))
    assert fields is not None
    assert fields["kwargs"] == {"text": "a\x00b"}
    assert message_fields_of(engine, uuid.uuid4()) is None


def test_no_statement_is_compiled(engine: Engine) -> None:
    with engine.connect() as connection:
        # With it, a server that can compile took 20 s for a batch: a plan over many partitions looks dear to it.
        assert connection.execute(text("SHOW jit")).scalar_one() == "off"
