"""`/schedules`: what is taken, what is refused and how, and what is shown."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from service.access.scopes import Caller, Scope
from service.api.app import build_app
from service.broker import RedisBroker
from service.job import job
from service.schedules import Cron, Schedule
from service.schedules.book import ScheduleBook
from service.schedules.clock import clock_of
from service.schedules.entry import Entry
from service.schedules.firing import Firing
from service.schedules.states import States
from service.state.database import engine_for
from service.state.history import History
from tests.api.conftest import Answer, Api

CODE = Schedule("in-code", "count.up", Cron("0 3 * * *", "Europe/Berlin"), {"n": 1}, missed="all", jitter="5m")


@pytest.fixture
def engine(database_url: str) -> Engine:
    return engine_for(database_url)


@pytest.fixture
def serve_book(
    broker: RedisBroker, engine: Engine, serve: Callable[[Any], Api], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Api]:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="count.up", queue="default")
    def up(*, n: int) -> int:
        return n

    book = ScheduleBook(broker, (CODE,), engine)

    def start(**more: Any) -> Api:
        return serve(build_app(broker, History(engine, broker), book=book, **more))

    return start


@pytest.fixture
def api(serve_book: Callable[..., Api]) -> Api:
    return serve_book()


def create(api: Api, name: str = "mine", **document: Any) -> Answer:
    body = {"name": name, "type": "count.up", "payload": {"n": 1}, **document}
    return api.ask("POST", "/schedules", json=body)


def fields(answer: Answer) -> list[str]:
    assert (answer.status, answer.content_type) == (422, "application/problem+json"), answer.body
    return [each["field"] for each in answer.body["errors"]]


# Weekdays: case 04-O09.


@pytest.mark.parametrize(
    ("line", "days"),
    [
        ("30 7 * * 4", ["Thu", "Thu", "Thu"]),
        ("0 2 * * 0", ["Sun", "Sun", "Sun"]),
        ("0 2 * * 7", ["Sun", "Sun", "Sun"]),
        ("0 2 * * sun", ["Sun", "Sun", "Sun"]),
        ("15 10 * * 1,7", ["Mon", "Sun", "Mon"]),
        ("0 0 * * 5-7", ["Fri", "Sat", "Sun"]),
    ],
)
def test_weekdays_mean_the_same_to_the_api_its_preview_and_the_scheduler(
    api: Api, broker: RedisBroker, line: str, days: list[str]
) -> None:
    asked = {"cron": line, "timezone": "Europe/Berlin", "count": 3, "after": "2024-01-01T00:00:00"}
    previewed = api.ask("POST", "/schedules/preview", json=asked).body["next_times"]
    if days[0] in ("Fri", "Thu"):
        assert [weekday(each["local"]) for each in previewed] == days
    assert {weekday(each["local"]) for each in previewed} == set(days)
    assert create(api, cron=line, timezone="Europe/Berlin").status == 201
    shown = api.get("/schedules/mine?next=3").body
    assert {weekday(each["local"]) for each in shown["next_times"]} == set(days)
    # The scheduler, asked a moment before: the same due time.
    document = shown["schedule"]
    schedule = Schedule("mine", "count.up", Cron(document["cron"], document["timezone"]), {"n": 1})
    first = datetime.fromisoformat(shown["next_times"][0]["at"])
    assert schedule.after(clock_of(broker)()) == first


def weekday(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%a")


@pytest.mark.parametrize(
    "line",
    ["", "@daily", "* * * * 8", "* * * * 1#2", "* * L * *", "0 0 1 * 1", "* * * * * *", "0 0 30 2 *", "é * * * *"],
)
def test_a_line_that_is_not_supported_is_refused_and_nothing_is_stored(api: Api, line: str) -> None:
    assert fields(create(api, cron=line)) == ["cron"]
    assert fields(api.ask("POST", "/schedules/preview", json={"cron": line})) == ["cron"]
    assert api.get("/schedules/mine").status == 404


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({}, "schedule"),
        ({"cron": "* * * * *", "every": {"days": 1}}, "schedule"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "timezone"),
        ({"every": {"days": 1, "hours": 1}}, "every"),
        ({"every": {"seconds": 0}}, "every"),
        ({"every": {"fortnights": 1}}, "body.every.fortnights"),
        ({"every": {"seconds": 1.5}}, "body.every.seconds"),
        ({"at": "2001-01-01T00:00:00Z"}, "schedule"),
        ({"at": "9999-12-31T23:59:59Z"}, "body"),
        ({"at": "soon"}, "body.at"),
        ({"cron": "* * * * *", "end": "2020-01-01T00:00:00Z"}, "schedule"),
        ({"cron": "* * * * *", "missed": "maybe"}, "body.missed"),
        ({"cron": "* * * * *", "window": "an hour"}, "schedule"),
        ({"cron": "* * * * *", "most": 0}, "schedule"),
        ({"cron": "* * * * *", "jitter": "3d"}, "schedule"),
        ({"cron": "* * * * *", "pause_after_failures": 0}, "schedule"),
        ({"cron": "* * * * *", "payload": {"n": "one"}}, "payload.n"),
        ({"cron": "* * * * *", "payload": {"n": 1, "m": 2}}, "payload.m"),
        ({"cron": "* * * * *", "name": "a/b"}, "body.name"),
        ({"cron": "* * * * *", "tenant": "a\x00"}, "body.tenant"),
        ({"cron": "* * * * *", "colour": "red"}, "body.colour"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(api: Api, wrong: dict[str, Any], field: str) -> None:
    assert fields(create(api, **wrong)) == [field]


def test_an_unknown_type_is_refused_with_those_that_are_known(api: Api) -> None:
    answer = create(api, cron="* * * * *", type="count.down")
    assert (answer.status, answer.body["known_types"]) == (422, ["count.up"])


# Intervals: case 04-O10.


def test_the_preview_shows_the_rule_of_each_unit_with_zone_and_offset(api: Api) -> None:
    def preview(**every: int) -> list[str]:
        plan = {"every": every, "timezone": "Europe/Brussels", "start": "2019-03-26T16:00:00"}
        answer = api.ask("POST", "/schedules/preview", json={**plan, "count": 3, "after": "2019-03-26T00:00:00"})
        assert answer.body["timezone"] == "Europe/Brussels"
        return [each["local"] for each in answer.body["next_times"]]

    start = "2019-03-26T16:00:00+01:00"
    assert preview(days=7) == [start, "2019-04-02T16:00:00+02:00", "2019-04-09T16:00:00+02:00"]
    assert preview(hours=168) == [start, "2019-04-02T17:00:00+02:00", "2019-04-09T17:00:00+02:00"]


# Looking.


def test_a_schedule_is_shown_as_it_was_made_with_ten_due_times(api: Api) -> None:
    made = create(api, every={"hours": 6}, timezone="Australia/Lord_Howe", missed="all", most=5, tenant="acme")
    assert made.status == 201
    assert len(made.body["next_times"]) == 10
    shown = api.get("/schedules/mine").body
    assert shown["schedule"] == {
        "name": "mine",
        "type": "count.up",
        "payload": {"n": 1},
        "every": {"hours": 6},
        "timezone": "Australia/Lord_Howe",
        "missed": "all",
        "most": 5,
        "tenant": "acme",
    }
    assert (shown["source"], shown["state"], shown["missed"], shown["last_run"]) == ("stored", "active", 0, None)
    assert shown["next_times"][0]["local"].endswith(("+10:30", "+11:00"))
    listed = api.get("/schedules").body["schedules"]
    assert [each["name"] for each in listed] == ["in-code", "mine"]
    assert [len(each["next_times"]) for each in listed] == [3, 3]
    assert api.get("/schedules/nobodys").status == 404
    assert api.get("/schedules?next=1000").status == 422


def test_a_text_with_nul_comes_back_as_it_was(api: Api, broker: RedisBroker) -> None:
    @job(name="text.take", queue="default")
    def take(*, text: str) -> None: ...

    text = "a\x00b \\u0000"
    assert create(api, cron="0 0 * * *", type="text.take", payload={"text": text}).status == 201
    assert api.get("/schedules/mine").body["schedule"]["payload"] == {"text": text}
    assert api.ask("POST", "/schedules/mine/pause", json={"why": "\x00"}).body["paused"]["why"] == "\x00"


def test_what_was_missed_is_shown(api: Api, broker: RedisBroker) -> None:
    create(api, cron="* * * * *")
    states = States(broker)
    states.change("mine", lambda state: state and state.changed(state.decided_until, missed=7, caught_up=1))
    shown = api.get("/schedules/mine").body
    assert (shown["missed"], shown["caught_up"]) == (7, 1)


# Changing.


def test_a_name_is_given_once(api: Api) -> None:
    assert create(api, cron="* * * * *").status == 201
    again = create(api, cron="0 * * * *")
    assert (again.status, again.body["type"]) == (409, "urn:callboard:problem:conflict")
    assert create(api, "in-code", cron="* * * * *").status == 409


def test_put_replaces_and_patch_changes_members(api: Api) -> None:
    create(api, cron="* * * * *", missed="all")
    document = {"name": "mine", "type": "count.up", "payload": {"n": 2}, "every": {"days": 1}}
    replaced = api.ask("PUT", "/schedules/mine", json=document)
    assert (replaced.status, replaced.body["schedule"]) == (200, document)
    patched = api.ask("PATCH", "/schedules/mine", json={"cron": "0 4 * * *", "payload": {"n": 3}, "jitter": "1m"})
    assert patched.status == 200
    assert patched.body["schedule"] == {
        "name": "mine",
        "type": "count.up",
        "payload": {"n": 3},
        "cron": "0 4 * * *",
        "jitter": "1m",
    }
    assert "jitter" not in api.ask("PATCH", "/schedules/mine", json={"jitter": None}).body["schedule"]
    assert fields(api.ask("PATCH", "/schedules/mine", json={"cron": "* * * * 9"})) == ["cron"]
    assert fields(api.ask("PATCH", "/schedules/mine", json={"colour": "red"})) == ["colour"]
    assert fields(api.ask("PATCH", "/schedules/mine", json={"name": "other"})) == ["name"]
    assert fields(api.ask("PATCH", "/schedules/mine", json={"payload": {}})) == ["payload.n"]
    assert api.ask("PUT", "/schedules/other", json={**document, "name": "other"}).status == 404
    assert api.get("/schedules/mine").body["schedule"]["cron"] == "0 4 * * *"


def test_a_deleted_schedule_is_gone_and_its_name_is_free(api: Api) -> None:
    create(api, cron="* * * * *")
    assert api.ask("DELETE", "/schedules/mine").status == 204
    assert api.ask("DELETE", "/schedules/mine").status == 404
    assert api.get("/schedules/mine").status == 404
    made = create(api, cron="* * * * *")
    assert (made.status, made.body["sent"]) == (201, 0)


def test_a_schedule_of_code_can_be_paused_and_run_but_not_changed(api: Api) -> None:
    shown = api.get("/schedules/in-code").body
    assert (shown["source"], shown["timezone"]) == ("code", "Europe/Berlin")
    assert shown["schedule"]["cron"] == "0 3 * * *"
    for method, body in (("PUT", {**shown["schedule"]}), ("PATCH", {"cron": "* * * * *"}), ("DELETE", None)):
        refused = api.ask(method, "/schedules/in-code", **({"json": body} if body else {}))
        assert (refused.status, refused.content_type) == (409, "application/problem+json"), refused.body
        assert "is in code: change it there" in refused.body["detail"]
    paused = api.ask("POST", "/schedules/in-code/pause", json={"why": "holidays"})
    assert (paused.status, paused.body["state"]) == (200, "paused")
    assert (paused.body["paused"]["by"], paused.body["paused"]["why"]) == ("anybody", "holidays")
    # Again changes nothing, and a restart of Redis's keys neither: the database has a copy.
    again = api.ask("POST", "/schedules/in-code/pause", json={"why": "other"})
    assert again.body["paused"] == paused.body["paused"]
    assert api.ask("POST", "/schedules/in-code/run").status == 202
    resumed = api.ask("POST", "/schedules/in-code/resume")
    assert (resumed.body["state"], resumed.body["paused"]) == ("active", None)


def test_run_sends_one_job_that_can_be_followed(api: Api, broker: RedisBroker) -> None:
    create(api, cron="0 0 1 1 *", tenant="acme")
    started = api.ask("POST", "/schedules/mine/run")
    assert started.status == 202
    assert api.get(started.body["poll_url"]).body["status"] == "pending"
    shown = api.get("/schedules/mine").body
    assert shown["last_run"]["job_id"] == started.body["job_id"]
    assert [(run["job_id"], run["kind"]) for run in shown["runs"]] == [(started.body["job_id"], "by-hand")]
    assert shown["sent"] == 1


def test_a_pause_survives_an_emptied_redis(api: Api, broker: RedisBroker, engine: Engine) -> None:
    from service.schedules.ledger import Ledger

    create(api, cron="* * * * *")
    api.ask("POST", "/schedules/mine/pause")
    broker.client.delete(f"{{{broker.namespace}:schedules}}:state:mine")
    ledger = Ledger(engine)
    kept = ledger.state_of("mine")
    assert kept
    schedule = Schedule("mine", "count.up", Cron("* * * * *"), {"n": 1}, version=kept.version)
    state = Firing(broker, ledger).fire(Entry.of(broker, schedule), clock_of(broker)())
    assert state.paused
    assert api.get("/schedules/mine").body["state"] == "paused"


# Tenants.


def test_a_tenant_sees_and_touches_its_own_alone(serve_book: Callable[..., Api]) -> None:
    def of(tenant: str) -> Api:
        async def authenticate(scope: Any, *, again: bool = False) -> Caller:
            return Caller(tenant, frozenset({Scope.READ, Scope.OPERATE}), "key", tenant)

        return serve_book(authenticate=authenticate)

    acme, other = of("acme"), of("other")
    assert create(acme, cron="* * * * *").body["schedule"]["tenant"] == "acme"
    assert fields(create(acme, "stolen", cron="* * * * *", tenant="other")) == ["tenant"]
    assert [each["name"] for each in acme.get("/schedules").body["schedules"]] == ["mine"]
    assert other.get("/schedules").body["schedules"] == []
    document = {"name": "mine", "type": "count.up", "payload": {"n": 1}, "cron": "* * * * *"}
    for method, path, body in (
        ("GET", "/schedules/mine", None),
        ("PUT", "/schedules/mine", document),
        ("PATCH", "/schedules/mine", {"missed": "skip"}),
        ("DELETE", "/schedules/mine", None),
        ("POST", "/schedules/mine/pause", {}),
        ("POST", "/schedules/mine/resume", {}),
        ("POST", "/schedules/mine/run", {}),
        ("GET", "/schedules/in-code", None),
        ("POST", "/schedules/in-code/pause", {}),
    ):
        assert other.ask(method, path, **({} if body is None else {"json": body})).status == 404, path
    assert fields(acme.ask("PATCH", "/schedules/mine", json={"tenant": "other"})) == ["tenant"]
    assert acme.ask("PATCH", "/schedules/mine", json={"tenant": None}).body["schedule"]["tenant"] == "acme"


def test_who_takes_a_name_that_is_free_again_sees_no_job_of_the_one_before(serve_book: Callable[..., Api]) -> None:
    def of(tenant: str) -> Api:
        async def authenticate(scope: Any, *, again: bool = False) -> Caller:
            return Caller(tenant, frozenset({Scope.READ, Scope.OPERATE}), "key", tenant)

        return serve_book(authenticate=authenticate)

    acme, other = of("acme"), of("other")
    create(acme, cron="* * * * *")
    assert acme.ask("POST", "/schedules/mine/run").status == 202
    assert len(acme.get("/schedules/mine").body["runs"]) == 1
    acme.ask("DELETE", "/schedules/mine")
    create(other, cron="* * * * *")
    shown = other.get("/schedules/mine").body
    assert (shown["runs"], shown["last_run"], shown["sent"]) == ([], None, 0)
    other.ask("POST", "/schedules/mine/run")
    assert len(other.get("/schedules/mine").body["runs"]) == 1


# Outages.


def test_without_postgresql_the_schedules_are_503(
    broker: RedisBroker, engine: Engine, serve: Callable[[Any], Api]
) -> None:
    nowhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    api = serve(build_app(broker, History(nowhere, broker), book=ScheduleBook(broker, (CODE,), nowhere)))
    answer = api.get("/schedules")
    assert (answer.status, answer.body["type"]) == (503, "urn:callboard:problem:history-unavailable")
    # What is in code needs Redis alone.
    assert api.ask("POST", "/schedules/in-code/pause").body["state"] == "paused"


def test_a_row_that_this_release_can_not_read_is_shown_as_broken(api: Api, engine: Engine) -> None:
    from sqlalchemy import text

    create(api, cron="* * * * *")
    with engine.begin() as connection:
        connection.execute(text("""UPDATE callboard_schedules SET document = '{"name": "mine", "moon": "full"}'"""))
    [_, shown] = api.get("/schedules").body["schedules"]
    assert (shown["state"], shown["next_times"]) == ("broken", [])
    assert "moon" in shown["last_error"]
    assert api.ask("DELETE", "/schedules/mine").status == 204


def test_a_run_that_is_refused_says_why(api: Api, broker: RedisBroker) -> None:
    from service.middleware.unique import Unique

    @job(name="count.alone", queue="default", unique=Unique(lambda _: "one"))
    def alone() -> None: ...

    create(api, cron="0 0 1 1 *", type="count.alone", payload={})
    assert api.ask("POST", "/schedules/mine/run").status == 202
    refused = api.ask("POST", "/schedules/mine/run")
    assert refused.status == 409
    assert "has the unique key" in refused.body["detail"]
