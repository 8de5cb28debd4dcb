"""What an earlier release has left in Redis is understood by this one: see write.py for how the corpus is made."""

import contextlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from dramatiq.message import Message

from service.broker import RedisBroker, events
from service.broker.dead_letter import split_header
from service.broker.keys import Keys
from service.queues import QUEUES
from service.state.snapshot import Snapshot
from service.state.states import State, is_final
from tests.compat import store
from tests.e2e.conftest import Service
from tests.jobs import send, state_of
from tests.servers import eventually


class Release:
    """What one release has left, loaded into the test's namespace."""

    def __init__(self, folder: Path, broker: RedisBroker) -> None:
        self.jobs, self.events, self._redis = (
            json.loads((folder / f"{name}.json").read_text()) for name in ("jobs", "events", "redis")
        )
        store.load(broker.client, broker.namespace, self._redis)

    def ids_of(self, kind: str) -> list[str]:
        found = [job_id for job_id, job in self.jobs.items() if job["kind"] == kind]
        assert found, f"no job of the kind {kind!r}"
        return found


@pytest.fixture(params=store.releases())
def release(request: pytest.FixtureRequest, broker: RedisBroker) -> Release:
    return Release(store.CORPUS / request.param, broker)


@pytest.fixture
def worker(tmp_path: Path, environment: dict[str, str]) -> Iterator[Service]:
    service = Service(tmp_path, {**environment, "CALLBOARD_ACTORS": "compat_jobs"})
    yield service
    service.stop()


def record_of(broker: RedisBroker, job_id: str) -> dict[str, str]:
    record = broker.find_record(job_id)
    assert record is not None, job_id
    return record


def events_in(broker: RedisBroker) -> Iterator[dict[str, str]]:
    for queue in QUEUES:
        for entry, fields in broker.client.xrange(Keys(broker.namespace, queue).events):
            texts = {name.decode(): value.decode() for name, value in fields.items()}
            yield from events.read(entry.decode(), texts, queue)


def test_the_release_that_is_built_has_its_corpus() -> None:
    assert version("callboard") in store.releases(), "python -m tests.compat.write"


def test_what_redis_says_of_each_job_is_read(broker: RedisBroker, release: Release) -> None:
    for job_id, job in release.jobs.items():
        found = record_of(broker, job_id)
        # A later release may say more.
        assert {name: found.get(name) for name in job["now"]} == job["now"], job["kind"]
        Snapshot.from_event(found)


def test_each_event_is_read_as_it_was_meant(broker: RedisBroker, release: Release) -> None:
    found = list(events_in(broker))
    assert len(found) == len(release.events)
    for read, expected in zip(found, release.events, strict=True):
        assert {name: read.get(name) for name in expected} == expected
        Snapshot.from_event(read)
    assert {event["state"] for event in found} == set(State) - {State.CANCELLED}, "which that release did not know"


def test_dead_letters_are_kept_with_their_messages(broker: RedisBroker, release: Release) -> None:
    [job_id] = release.ids_of("dead")
    keys = Keys(broker.namespace, "email")
    assert broker.client.zrange(keys.dead, 0, -1) == [job_id.encode()]
    message = Message.decode(split_header(broker.client.hget(keys.dead_messages, job_id))[1])
    assert (message.message_id, message.actor_name) == (job_id, "compat.attempt")


def test_what_was_sent_once_is_not_sent_again(broker: RedisBroker, release: Release) -> None:
    [job_id] = release.ids_of("sent once")
    again: Message[Any] = Message("default", "compat.attempt", (), {}, {}, message_id=job_id)
    assert not broker.send(again, once_within_seconds=3600)


@pytest.mark.timeout(180)
def test_each_job_comes_to_its_right_end(broker: RedisBroker, worker: Service, release: Release) -> None:
    worker.start_worker()
    ends = {job_id: job["end"] for job_id, job in release.jobs.items() if is_final(State(job["end"]["state"]))}

    def missing() -> list[str]:
        return [release.jobs[job_id]["kind"] for job_id in ends if not is_final(State(state_of_id(job_id)))]

    def state_of_id(job_id: str) -> str:
        return record_of(broker, job_id)["state"]

    with contextlib.suppress(AssertionError):
        eventually(lambda: not missing(), 90)
    assert missing() == []
    for job_id, end in ends.items():
        found: dict[str, Any] = record_of(broker, job_id)
        if "result" in end:
            found["result"] = json.loads(found["result"])
        assert {name: found.get(name) for name in end} == end, (release.jobs[job_id]["kind"], found)
    waiting = release.ids_of("delayed for long")
    assert [state_of_id(job_id) for job_id in waiting] == ["scheduled"]
    eventually(lambda: sum(broker.wire.backlog(queue) for queue in QUEUES) == len(waiting))


def test_what_a_next_release_may_add_is_passed_over(broker: RedisBroker, worker: Service, release: Release) -> None:
    """The other direction, as far as it can be told in advance: fields of a payload, options, and words of an event."""
    worker.start_worker()
    message = Message("default", "compat.attempt", (), {"added": {"in": "2.0"}}, {"added": [1]})
    broker.send(message)
    other = send(broker, "compat.plain", 1)
    for sent in (message, other):
        eventually(lambda sent=sent: state_of(broker, sent) == "succeeded")
    [job_id] = release.ids_of("succeeded")
    finals = Keys(broker.namespace, "email").finals
    at, _, event = broker.client.hget(finals, job_id).decode().partition(" ")
    broker.client.hset(finals, job_id, f"{at} {json.dumps({**json.loads(event), 'added': 'in 2.0'})}")
    assert Snapshot.from_event(record_of(broker, job_id)).state is State.SUCCEEDED
