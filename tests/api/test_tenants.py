"""Tenants: a key of one sends, sees and repeats as if there were no others."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from dramatiq.worker import Worker

from service.broker import RedisBroker, dead_letters
from service.broker.job_acts import JobActs
from service.broker.outcome import Dead, Failure, Reason
from service.broker.queue_acts import QueueActs
from service.broker.settlement import settlement_of
from service.state.database import engine_for
from service.state.projector import Projector
from tests.api.access import Guarded, guarded
from tests.servers import eventually

ONE = {"type": "only.one", "payload": {"n": 1}}


@pytest.fixture
def api(broker: RedisBroker, database_url: str) -> Iterator[Guarded]:
    with guarded(broker, database_url) as api:
        yield api


@pytest.fixture
def acme(api: Guarded) -> str:
    return api.key("submit", "read", name="acme", tenant="acme")[1]


@pytest.fixture
def umbrella(api: Guarded) -> str:
    return api.key("submit", "read", "operate", name="umbrella", tenant="umbrella")[1]


@pytest.fixture
def anyone(api: Guarded) -> str:
    return api.key("submit", "read", name="all")[1]


def test_another_tenants_job_is_not_found_as_one_that_is_none(
    api: Guarded, broker: RedisBroker, acme: str, umbrella: str, anyone: str
) -> None:
    path = api.send(acme).json()["poll_url"]
    assert api.ask("GET", path, acme).status_code == api.ask("GET", path, anyone).status_code == 200
    hidden = api.ask("GET", path, umbrella)
    nowhere = api.ask("GET", f"/jobs/{uuid4()}", umbrella)
    assert hidden.status_code == nowhere.status_code == 404
    assert hidden.json()["detail"].replace(path[6:], "X") == nowhere.json()["detail"].replace(
        nowhere.json()["detail"].split()[1], "X"
    )
    assert hidden.headers.keys() == nowhere.headers.keys()
    [delivery] = broker.fetch("default", 1)[0]
    assert delivery.options["tenant"] == "acme"
    assert api.ask("GET", path, acme).json()["state"] == "running"
    assert api.ask("GET", path, umbrella).status_code == 404


def test_a_job_of_nobody_is_not_there_for_a_tenant(api: Guarded, acme: str, anyone: str) -> None:
    assert api.ask("GET", api.send(anyone).json()["poll_url"], acme).status_code == 404


def test_a_key_of_all_names_a_tenant_and_a_tenants_own_may_not(api: Guarded, acme: str, anyone: str) -> None:
    sent = api.send(anyone, {**ONE, "tenant": "acme"})
    assert api.ask("GET", sent.json()["poll_url"], acme).status_code == 200
    for tenant in ("acme", "umbrella"):
        refused = api.send(acme, {**ONE, "tenant": tenant})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "tenant")
    for wrong in ("", " acme", "a\nb", "x" * 257, 7):
        refused = api.send(anyone, {**ONE, "tenant": wrong})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "tenant")


def test_a_unique_job_of_one_tenant_neither_stops_nor_betrays_anothers(api: Guarded, acme: str, umbrella: str) -> None:
    first = api.send(acme, ONE)
    assert api.send(umbrella, ONE).status_code == 202
    again = api.send(acme, ONE)
    assert (again.status_code, again.json()["job_id"]) == (409, first.json()["job_id"])


def test_one_idempotency_key_is_another_for_each_tenant(api: Guarded, acme: str, umbrella: str, anyone: str) -> None:
    header = {"Idempotency-Key": "k"}
    jobs = [api.send(token, **header).json()["job_id"] for token in (acme, umbrella, anyone)]
    assert len(set(jobs)) == 3
    assert [api.send(token, **header).json()["job_id"] for token in (acme, umbrella, anyone)] == jobs
    named = api.send(anyone, {"type": "count.up", "payload": {"n": 1}, "tenant": "acme"}, **header)
    assert named.status_code == 422, "it asks for another job"


def test_jobs_of_a_tenant_are_listed_by_their_key_as_it_was_sent(
    api: Guarded, broker: RedisBroker, database_url: str, acme: str, umbrella: str, anyone: str
) -> None:
    count = broker.get_actor("count.up")
    for tenant in ("acme", "umbrella"):
        count.send_with_options(kwargs={"n": 1}, idempotency_key="invoice:7", tenant=tenant)
    engine = engine_for(database_url)
    with engine.connect() as connection:
        while Projector(broker, engine).project_batch(connection):
            pass
    engine.dispose()

    def listed(token: str, query: str) -> list[tuple[str, str]]:
        jobs = api.ask("GET", f"/jobs?{query}", token).json()["jobs"]
        return [(job["tenant"], job["key"]) for job in jobs]

    own = [("acme", "tenant:acme:invoice:7")]
    assert listed(acme, "key=invoice:7") == listed(anyone, "tenant=acme&key=invoice:7") == own
    assert listed(acme, "key=tenant:acme:invoice:7") == listed(anyone, "key=tenant:acme:invoice:7") == own
    assert listed(umbrella, "key=tenant:acme:invoice:7") == listed(anyone, "key=invoice:7") == []


def test_a_key_of_a_tenant_does_not_reach_what_concerns_all(api: Guarded, umbrella: str) -> None:
    answer = api.ask("POST", "/acts", umbrella)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:callboard:problem:not-for-tenants")
    assert api.done == []
    assert api.log.page() == []


def test_a_batch_is_for_the_keys_own_tenant(api: Guarded, acme: str, umbrella: str) -> None:
    job = {"type": "count.up", "payload": {"n": 1}}
    sent = api.ask("POST", "/jobs/batch", acme, json={"jobs": [job, job]}).json()
    for job_id in sent["job_ids"]:
        assert api.ask("GET", f"/jobs/{job_id}", acme).status_code == 200
        assert api.ask("GET", f"/jobs/{job_id}", umbrella).status_code == 404
    refused = api.ask("POST", "/jobs/batch", acme, json={"jobs": [job, {**job, "tenant": "umbrella"}]})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "jobs.1.tenant")


def test_a_job_that_has_ended_stays_its_tenants_before_and_after_it_is_stored(
    api: Guarded, broker: RedisBroker, start_worker: Callable[..., Worker], database_url: str, acme: str, umbrella: str
) -> None:
    path = api.send(acme).json()["poll_url"]
    start_worker()
    eventually(lambda: api.ask("GET", path, acme).json().get("state") == "succeeded")
    assert api.ask("GET", path, umbrella).status_code == 404
    engine = engine_for(database_url)
    with engine.connect() as connection:
        projector = Projector(broker, engine)
        while projector.project_batch(connection):
            pass
    engine.dispose()
    assert broker.find_record(path.removeprefix("/jobs/")) is None, "it is in the database only"
    assert api.ask("GET", path, acme).json()["state"] == "succeeded"
    assert api.ask("GET", path, umbrella).status_code == 404


def test_acts_on_one_job_are_for_its_tenant_and_written_down(
    api: Guarded, broker: RedisBroker, umbrella: str, acme: str
) -> None:
    path = api.send(acme).json()["poll_url"]
    job_id = path.removeprefix("/jobs/")
    operator = api.key("operate", name="acme-operator", tenant="acme")[1]
    everyone = api.key("operate", name="operator")[1]

    def acts(token: str, path: str) -> list[tuple[int, str]]:
        asked = [("PATCH", path, {"priority": 0}), ("POST", f"{path}/retry", {}), ("POST", f"{path}/cancel", {})]
        answers = [api.ask(method, where, token, json=body) for method, where, body in asked]
        return [(answer.status_code, answer.json().get("type", "")) for answer in answers]

    hidden = acts(umbrella, path)
    assert hidden == acts(umbrella, f"/jobs/{uuid4()}") == [(404, "urn:callboard:problem:not-found")] * 3
    assert api.ask("GET", path, acme).json()["state"] == "pending"
    assert [line.count for line in api.log.page(limit=6)] == [0] * 6
    assert [status for status, _ in acts(operator, path)] == [200, 409, 200]
    lines = api.log.page(limit=3)
    assert [(line.who, line.tenant, line.count, line.filter, line.status) for line in lines] == [
        ("acme-operator", "acme", 1, {"job_id": job_id}, 200),
        ("acme-operator", "acme", 0, {"job_id": job_id}, 409),
        ("acme-operator", "acme", 1, {"job_id": job_id}, 200),
    ]
    nobodys = api.send(api.key("submit", name="s")[1]).json()["poll_url"]
    assert [status for status, _ in acts(operator, nobodys)] == [404] * 3
    assert [status for status, _ in acts(everyone, nobodys)] == [200, 409, 200]


def test_a_switched_queue_is_written_down_with_its_name(api: Guarded) -> None:
    token = api.key("operate", name="operator")[1]
    for act in ("pause", "pause", "resume"):
        assert api.ask("POST", f"/queues/email/{act}", token).status_code == 200
    assert [(line.count, line.filter) for line in reversed(api.log.page())] == [
        (1, {"queue": "email"}),
        (0, {"queue": "email"}),
        (1, {"queue": "email"}),
    ]


def test_a_timeline_names_no_child_of_another_tenant(
    api: Guarded, broker: RedisBroker, database_url: str, acme: str, umbrella: str, anyone: str
) -> None:
    path = api.send(acme).json()["poll_url"]
    of_parent = {"parent_id": path.removeprefix("/jobs/")}
    actor = broker.get_actor("count.up")
    children = [
        actor.message_with_options(kwargs={"n": 1}, **of_parent, tenant=tenant) for tenant in ("acme", "umbrella")
    ]
    for child in children:
        broker.enqueue(child)
    engine = engine_for(database_url)
    with engine.connect() as connection:
        while Projector(broker, engine).project_batch(connection):
            pass
    engine.dispose()
    told = {token: api.ask("GET", f"{path}/timeline", token).json() for token in (acme, anyone)}
    assert [child["job_id"] for child in told[acme]["children"]] == [children[0].message_id]
    assert len(told[anyone]["children"]) == 2


def die(api: Guarded, broker: RedisBroker, token: str) -> str:
    job_id = api.send(token).json()["job_id"]
    [delivery] = broker.fetch("default", 1)[0]
    delivery.outcome = Dead(Failure("ValueError", "no", "Traceback ..."), Reason.FAILED)
    broker.settle("default", [settlement_of(delivery)])
    return job_id


def test_dead_letters_are_their_tenants(
    api: Guarded, broker: RedisBroker, acme: str, umbrella: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = die(api, broker, umbrella), die(api, broker, acme)
    nobodys = die(api, broker, api.key("submit", name="s")[1])
    listed = api.ask("GET", "/dead-letters", umbrella).json()
    assert [(letter["job_id"], letter["tenant"]) for letter in listed["dead_letters"]] == [(mine, "umbrella")]
    everyone = api.key("read", "operate", name="operator")[1]
    assert len(api.ask("GET", "/dead-letters", everyone).json()["dead_letters"]) == 3
    [found] = api.ask("GET", "/dead-letters?tenant=acme", everyone).json()["dead_letters"]
    assert found["job_id"] == others
    assert api.ask("GET", "/dead-letters?tenant=acme", umbrella).status_code == 422

    unknown = str(uuid4())
    for job_id in (others, nobodys):
        for method, act in (("GET", ""), ("DELETE", ""), ("POST", "/replay")):
            asked = {"json": {}} if act else {}
            hidden = api.ask(method, f"/dead-letters/{job_id}{act}", umbrella, **asked)
            nowhere = api.ask(method, f"/dead-letters/{unknown}{act}", umbrella, **asked)
            assert hidden.status_code == nowhere.status_code == 404
            assert hidden.json()["detail"].replace(job_id, unknown) == nowhere.json()["detail"]

    many = {"filter": {"queue": "default"}}
    dry = api.ask("POST", "/dead-letters/replay", umbrella, json={**many, "dry_run": True}).json()
    assert (dry["replayed"], dry["skipped"]) == (1, 0)
    done = api.ask("POST", "/dead-letters/replay", umbrella, json={**many, "limit": 1}).json()
    assert done == {**dry, "dry_run": False}
    assert api.log.page(limit=1)[0].tenant == "umbrella"
    assert len(api.ask("GET", "/dead-letters", everyone).json()["dead_letters"]) == 2, "the others stay"

    # A page that has found nothing yet leads on by a cursor that names nobody's job.
    monkeypatch.setattr(dead_letters, "MOST_LOOKED_AT", 1)
    page = api.ask("GET", "/dead-letters", umbrella).json()
    assert page["dead_letters"] == []
    assert nobodys.encode().hex() not in page["cursor"]


def test_a_crash_has_its_tenants_letter_too(api: Guarded, broker: RedisBroker, acme: str, umbrella: str) -> None:
    """Whose final event is written by a script, which does not know the tenant."""
    job_id = api.send(umbrella).json()["job_id"]
    for _ in range(3):  # whoever holds it dies of it
        eventually(lambda: begun(broker))
    eventually(lambda: broker.wire.fetch("default", 1, lease_ms=1, wakeable_ms=0).died)
    assert api.ask("GET", f"/dead-letters/{job_id}", umbrella).json()["reason"] == "crashed"
    assert api.ask("GET", f"/dead-letters/{job_id}", acme).status_code == 404
    assert api.ask("GET", "/dead-letters", acme).json()["dead_letters"] == []


def test_one_key_of_a_replay_is_another_for_each_tenant(api: Guarded, broker: RedisBroker, umbrella: str) -> None:
    acme = api.key("submit", "read", "operate", name="acme-operator", tenant="acme")[1]
    many, key = {"filter": {"queue": "default"}}, {"Idempotency-Key": "1"}
    for token in (umbrella, acme):
        die(api, broker, token)
        done = api.ask("POST", "/dead-letters/replay", token, json={**many, "limit": 1}, headers=key).json()
        assert (done["replayed"], len(done["counts"])) == (1, 1)
        broker.fetch("default", 1)


def begun(broker: RedisBroker) -> bool:
    found = broker.wire.fetch("default", 1, lease_ms=1, wakeable_ms=0).messages
    return any(broker.wire.begin(lease) for lease, _, _ in found)


@pytest.mark.parametrize("end", ["crashed", "cancelled", "purged"])
def test_a_job_whose_end_a_script_has_written_is_its_tenants_and_no_others(
    api: Guarded, broker: RedisBroker, database_url: str, acme: str, umbrella: str, anyone: str, end: str
) -> None:
    """While only Redis knows of that end, and when it is stored: where its tenant is not known it is nobody's."""
    path = api.send(acme).json()["poll_url"]
    job_id = path.removeprefix("/jobs/")
    if end == "crashed":
        for _ in range(3):  # whoever holds it dies of it
            eventually(lambda: begun(broker))
        eventually(lambda: broker.wire.fetch("default", 1, lease_ms=1, wakeable_ms=0).died)
    elif end == "cancelled":
        JobActs(broker).cancel(job_id, by="ada")
    else:
        QueueActs(broker).purge("default", by="ada")
    state = "dead" if end == "crashed" else "cancelled"
    assert api.ask("GET", path, anyone).json()["state"] == state
    assert api.ask("GET", path, umbrella).status_code == 404
    assert api.ask("GET", path, acme).json().get("state") in (state, None)
    assert api.ask("POST", f"{path}/retry", umbrella).status_code == 404
    engine = engine_for(database_url)
    with engine.connect() as connection:
        while Projector(broker, engine).project_batch(connection):
            pass
    engine.dispose()
    assert broker.find_record(job_id) is None, "it is in the database only"
    assert api.ask("GET", path, acme).json()["state"] == state
    assert api.ask("GET", path, umbrella).status_code == 404
