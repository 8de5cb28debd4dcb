"""Real schedulers, killed and frozen; and schedules that are made over the API while they run."""

import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from tests.e2e.conftest import Service
from tests.servers import eventually, frozen_postgres

ACTORS = {"CALLBOARD_ACTORS": "schedule_jobs", "CALLBOARD_SCHEDULES": "schedule_jobs:SCHEDULES"}
ONE = {**ACTORS, "CALLBOARD_SCHEDULES": "schedule_jobs:ONE"}
NONE = {**ACTORS, "CALLBOARD_SCHEDULES": "schedule_jobs:NONE"}


def dues(service: Service, schedule: str) -> list[str]:
    """The due times whose jobs have run, in the order of their runs."""
    return [line.split()[2] for line in service.notes() if line.split()[1] == schedule]


def start_schedulers(service: Service, count: int) -> list[str]:
    names = [f"scheduler-{number}" for number in range(count)]
    for name in names:
        service.start(name, "callboard", "scheduler")
    eventually(lambda: all(service.is_ready(name) for name in names), 40)
    return names


def is_whole(found: list[str]) -> bool:
    """Each second from the first to the last, once."""
    times = sorted(datetime.fromisoformat(each) for each in found)
    expected = [times[0] + timedelta(seconds=number) for number in range(len(times))]
    return times == expected


@pytest.mark.parametrize("with_database", [False, True], ids=["redis", "redis-and-postgresql"])
def test_each_due_time_has_one_job_with_three_schedulers_of_which_two_are_killed_and_one_is_frozen(
    service: Service, request: pytest.FixtureRequest, with_database: bool
) -> None:
    service.environment |= ONE
    if with_database:
        service.environment["DATABASE_URL"] = request.getfixturevalue("database_url")
    service.start_worker()
    first, second, third = start_schedulers(service, 3)
    eventually(lambda: len(dues(service, "each-second")) >= 4)
    service.processes[first].send_signal(signal.SIGSTOP)
    so_far = len(dues(service, "each-second"))
    eventually(lambda: len(dues(service, "each-second")) >= so_far + 4)
    service.processes[second].send_signal(signal.SIGKILL)
    service.processes[first].send_signal(signal.SIGCONT)
    so_far = len(dues(service, "each-second"))
    eventually(lambda: len(dues(service, "each-second")) >= so_far + 3)
    # Nobody fires, and then the one that is left makes up for it.
    service.processes[third].send_signal(signal.SIGKILL)
    service.processes[first].send_signal(signal.SIGSTOP)
    time.sleep(3)
    service.processes[first].send_signal(signal.SIGCONT)
    so_far = len(dues(service, "each-second"))
    eventually(lambda: len(dues(service, "each-second")) >= so_far + 5)
    found = dues(service, "each-second")
    assert max(Counter(found).values()) == 1
    eventually(lambda: is_whole(dues(service, "each-second")))


def test_a_schedule_pauses_after_failures_in_a_row(service: Service) -> None:
    service.environment |= ACTORS
    service.start_worker()
    start_schedulers(service, 2)
    eventually(lambda: any("paused after 3 failures" in service.log(f"scheduler-{number}") for number in (0, 1)), 30)
    # What had been sent by then still runs; then no more comes.
    time.sleep(2)
    count = len(dues(service, "failing"))
    so_far = len(dues(service, "each-second"))
    eventually(lambda: len(dues(service, "each-second")) >= so_far + 4)
    assert len(dues(service, "failing")) == count <= 8


@pytest.fixture
def scheduling(service: Service, database_url: str) -> Service:
    """API, worker, and two schedulers without schedules in code."""
    service.environment |= {**NONE, "DATABASE_URL": database_url}
    service.start_api()
    service.start_worker()
    start_schedulers(service, 2)
    return service


def create(service: Service, **document: object) -> dict[str, object]:
    status, body = service.call("/schedules", {"type": "schedule.note", **document})
    assert status == 201, body
    return body


def test_what_is_made_over_the_api_is_due_five_seconds_later_and_paused_at_once(scheduling: Service) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=5)).replace(microsecond=0)
    create(scheduling, name="soon", at=at.isoformat(), tenant="acme")
    create(scheduling, name="often", every={"seconds": 1}, missed="skip", type="schedule.alone")
    eventually(lambda: dues(scheduling, "soon"), 15)
    assert datetime.now(UTC) - at < timedelta(seconds=5)
    [line] = [line for line in scheduling.notes() if " soon " in line]
    assert line == f"ran soon {at.isoformat()} acme"
    eventually(lambda: len(dues(scheduling, "often")) >= 2, 20)
    status, paused = scheduling.call("/schedules/often/pause", {"why": "a test"})
    now = datetime.now(UTC)
    assert (status, paused["state"]) == (200, "paused")
    time.sleep(3)
    assert max(datetime.fromisoformat(each) for each in dues(scheduling, "often")) <= now
    status, view = scheduling.call("/schedules/soon")
    assert view["state"] == "ended"
    assert [run["scheduled_for"] for run in view["runs"]] == [at.isoformat().replace("+00:00", "Z")]
    status, started = scheduling.call("/schedules/often/run", {})
    assert status == 202
    assert scheduling.end_of(started["job_id"])["status"] == "succeeded"


def test_while_postgresql_hangs_what_is_known_goes_on_and_nothing_fires_twice(
    scheduling: Service, postgres_url: str
) -> None:
    create(scheduling, name="often", every={"seconds": 1}, missed="all")
    eventually(lambda: len(dues(scheduling, "often")) >= 2, 20)
    with frozen_postgres(postgres_url):
        so_far = len(dues(scheduling, "often"))
        eventually(lambda: len(dues(scheduling, "often")) >= so_far + 6, 30)
    so_far = len(dues(scheduling, "often"))
    eventually(lambda: len(dues(scheduling, "often")) >= so_far + 3, 30)
    scheduling.processes["scheduler-0"].send_signal(signal.SIGKILL)
    scheduling.processes["scheduler-1"].send_signal(signal.SIGKILL)
    eventually(lambda: is_whole(dues(scheduling, "often")), 30)


def test_a_changed_schedule_goes_by_its_new_plan_and_a_deleted_one_never_fires_again(scheduling: Service) -> None:
    create(scheduling, name="moving", every={"hours": 5})
    document = {"name": "moving", "type": "schedule.note", "every": {"seconds": 1}, "payload": {"word": "new"}}
    status, _ = call(scheduling, "PUT", "/schedules/moving", document)
    assert status == 200
    eventually(lambda: len(dues(scheduling, "moving")) >= 3, 20)
    status, _ = call(scheduling, "DELETE", "/schedules/moving")
    gone_at = datetime.now(UTC)
    assert status == 204
    time.sleep(3)
    found = dues(scheduling, "moving")
    assert max(datetime.fromisoformat(each) for each in found) <= gone_at
    assert max(Counter(found).values()) == 1
    assert call(scheduling, "GET", "/schedules/moving")[0] == 404


def call(service: Service, method: str, path: str, body: object = None) -> tuple[int, object]:
    answer = httpx2.request(method, f"http://127.0.0.1:{service.api_port}{path}", json=body, timeout=10)
    return answer.status_code, answer.json() if answer.content else None
