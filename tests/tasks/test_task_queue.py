"""`/api/task-queue`: tasks are stored, listed, changed, and carried out by one job at a time."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.broker.keys import Keys
from tests.api.conftest import Api
from tests.servers import eventually
from tests.tasks.conftest import Calls, create, execute, runs_left, task

ROOT = "/api/task-queue"
COLUMNS = [
    *("task_id", "task_type", "description", "priority", "status", "result", "error_message"),
    *("job_id", "created_at", "started_at", "completed_at"),
]


def test_a_task_waits_until_it_is_executed(api: Api, broker: RedisBroker) -> None:
    answer = api.ask("POST", ROOT, json={"task_type": "agent.run", "description": "look it up"})
    assert answer.status == 201
    assert list(answer.body) == COLUMNS
    assert (answer.body["status"], answer.body["priority"]) == ("pending", 5)
    assert {answer.body[name] for name in ("result", "error_message", "job_id", "started_at", "completed_at")} == {None}
    assert task(api, answer.body["task_id"]) == answer.body
    assert broker.wire.backlog("default") == 0


@pytest.mark.parametrize(
    ("priority", "queue"), [(1, "high-priority"), (3, "high-priority"), (4, "default"), (5, "default"), (10, "default")]
)
def test_urgent_tasks_go_to_the_queue_of_high_priority(
    api: Api, broker: RedisBroker, priority: int, queue: str
) -> None:
    job_id = execute(api, create(api, priority=priority))
    stored = broker.client.hget(Keys(broker.namespace, queue).messages, job_id)
    assert json.loads(stored.partition(b"\n")[2])["queue_name"] == queue


def test_an_executed_task_is_completed_with_the_result(
    api: Api, calls: Calls, outcomes: None, engine: Engine, start_worker: Callable[..., Any]
) -> None:
    task_id = create(api, description="look it up", task_type="research", priority=2)
    job_id = execute(api, task_id)
    begun = task(api, task_id)
    assert (begun["status"], begun["job_id"], begun["completed_at"]) == ("in_progress", job_id, None)
    assert begun["started_at"] is not None
    start_worker()
    eventually(lambda: task(api, task_id)["status"] == "completed")
    done = task(api, task_id)
    assert (done["result"], done["error_message"], done["job_id"]) == ({"answer": "look it up"}, None, job_id)
    times = [datetime.fromisoformat(done[name]) for name in ("created_at", "started_at", "completed_at")]
    assert times == sorted(times)
    assert calls == [(task_id, "research", "look it up")]
    assert runs_left(engine) == []


def test_a_task_fails_with_the_text_of_the_error_and_only_after_its_last_attempt(
    api: Api, calls: Calls, outcomes: None, start_worker: Callable[..., Any]
) -> None:
    task_id = create(api, description="fail: no such page")
    execute(api, task_id)
    start_worker()
    seen: list[tuple[str, int]] = []

    def ended() -> bool:
        seen.append((task(api, task_id)["status"], len(calls)))
        return seen[-1][0] != "in_progress"

    eventually(ended)
    failed = task(api, task_id)
    assert (failed["status"], failed["result"]) == ("failed", None)
    assert failed["error_message"] == "ValueError: fail: no such page"
    assert failed["completed_at"] is not None
    assert seen[-1][1] == 2, "both attempts were made before it failed"


def test_a_task_that_succeeds_in_the_end_never_failed(
    api: Api, calls: Calls, outcomes: None, start_worker: Callable[..., Any]
) -> None:
    task_id = create(api, description="once more")
    execute(api, task_id)
    start_worker()
    seen: set[str] = set()

    def ended() -> bool:
        seen.add(task(api, task_id)["status"])
        return "completed" in seen

    eventually(ended)
    assert seen == {"in_progress", "completed"}
    assert len(calls) == 2
    assert task(api, task_id)["error_message"] is None


def test_of_twenty_executions_at_once_one_wins(api: Api, broker: RedisBroker) -> None:
    task_id = create(api)
    path = f"{ROOT}/{task_id}/execute"
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: api.ask("POST", path), range(20)))
    won = [answer for answer in answers if answer.status == 200]
    assert len(won) == 1
    assert broker.wire.backlog("default") == 1
    refused = [answer for answer in answers if answer.status != 200]
    assert {answer.status for answer in refused} == {409}
    assert {answer.body["job_id"] for answer in refused} == {won[0].body["job_id"]} == {task(api, task_id)["job_id"]}
    assert {answer.body["type"] for answer in refused} == {"urn:callboard:problem:task-in-progress"}


def test_a_task_that_has_ended_is_executed_again_by_a_new_job(
    api: Api, calls: Calls, outcomes: None, start_worker: Callable[..., Any]
) -> None:
    start_worker()
    task_id = create(api, description="fail this")
    first = execute(api, task_id)
    eventually(lambda: task(api, task_id)["status"] == "failed")
    assert api.ask("PATCH", f"{ROOT}/{task_id}", json={"description": "try that"}).status == 200
    second = execute(api, task_id)
    assert second != first
    eventually(lambda: task(api, task_id)["status"] == "completed")
    done = task(api, task_id)
    assert (done["job_id"], done["error_message"], done["result"]) == (second, None, {"answer": "try that"})


def test_an_actor_is_called_with_what_it_takes_of_a_task(
    api: Api, calls: Calls, outcomes: None, start_worker: Callable[..., Any]
) -> None:
    start_worker()
    task_id = create(api, task_type="agent.plain", description="only this")
    execute(api, task_id)
    eventually(lambda: task(api, task_id)["status"] == "completed")
    assert (calls, task(api, task_id)["result"]) == ([("only this",)], "only this")


@pytest.mark.parametrize("task_type", ["nobody", "parcel.send", "tick", "callboard.task-outcome"])
def test_a_type_without_an_actor_that_takes_tasks_is_refused(api: Api, outcomes: None, task_type: str) -> None:
    answer = api.ask("POST", ROOT, json={"task_type": task_type})
    assert answer.status == 422
    assert answer.body["known_types"] == ["agent.plain", "agent.run", "research"]
    task_id = create(api)
    assert api.ask("PATCH", f"{ROOT}/{task_id}", json={"task_type": task_type}).status == 422
    assert task(api, task_id)["task_type"] == "agent.run"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 0}, "body.priority"),
        ({"priority": 11}, "body.priority"),
        ({"priority": "1"}, "body.priority"),
        ({"priority": True}, "body.priority"),
        ({"task_type": ""}, "body.task_type"),
        ({"task_type": None}, "body.task_type"),
        ({"description": "a\x00b"}, "body.description"),
        ({"description": None}, "body.description"),
        ({"status": "completed"}, "body.status"),
        ({"result": 1}, "body.result"),
    ],
    ids=str,
)
def test_what_is_no_task_is_refused_with_its_field(api: Api, changes: dict[str, Any], field: str) -> None:
    answer = api.ask("POST", ROOT, json={"task_type": "agent.run", **changes})
    assert answer.status == 422
    assert field in [error["field"] for error in answer.body["errors"]]


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\u0000b"'])
def test_text_that_no_database_holds_is_refused(api: Api, text: str) -> None:
    body = f'{{"task_type": "agent.run", "description": {text}}}'
    answer = api.ask("POST", ROOT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status == 422


def test_a_task_whose_job_could_not_be_sent_is_refused_when_it_is_created(api: Api) -> None:
    answer = api.ask("POST", ROOT, json={"task_type": "agent.run", "description": "\U0001f600" * 30_000})
    assert answer.status == 422
    assert "description" in str(answer.body)


def test_harmless_text_comes_back_as_it_was(api: Api) -> None:
    text = "a\\u0000b \\ud800 'quoted' \"twice\" ünïcode \U0001f600\n"
    assert task(api, create(api, description=text))["description"] == text


@pytest.mark.parametrize("task_id", ["nothing", "7b2d8ff4-3a1e-4a0f-ab6e-1def9e4ba995", "0"])
def test_an_unknown_task_is_not_found(api: Api, task_id: str) -> None:
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "", {}),
        ("PATCH", "", {"json": {"priority": 1}}),
        ("PATCH", "", {"json": {"description": "x"}}),
        ("PUT", "", {"json": {"priority": 1}}),
        ("DELETE", "", {}),
        ("POST", "/execute", {}),
    ]
    for method, path, request in requests:
        answer = api.ask(method, f"{ROOT}/{task_id}{path}", **request)
        assert (answer.status, answer.body["detail"]) == (404, f"Task {task_id} not found")


def test_a_waiting_task_is_changed_and_a_running_one_is_not(api: Api) -> None:
    task_id = create(api)
    path = f"{ROOT}/{task_id}"
    changed = api.ask("PATCH", path, json={"priority": 1, "description": "sooner"})
    assert (changed.status, changed.body["priority"], changed.body["description"]) == (200, 1, "sooner")
    assert api.ask("PUT", path, json={"priority": 2}).body["priority"] == 2
    assert api.ask("PATCH", path, json={}).body == task(api, task_id)
    job_id = execute(api, task_id)
    for change in ({"priority": 9}, {"description": "other"}, {"status": "pending"}):
        answer = api.ask("PATCH", path, json=change)
        assert (answer.status, answer.body["job_id"]) == (409, job_id)
    assert api.ask("PATCH", path, json={"priority": 2}).status == 200, "what changes nothing is safe to repeat"
    assert task(api, task_id)["priority"] == 2


def test_clients_cancel_what_waits_and_put_back_what_was_cancelled(api: Api) -> None:
    task_id = create(api)
    path = f"{ROOT}/{task_id}"
    cancelled = api.ask("PATCH", path, json={"status": "cancelled"}).body
    assert cancelled["status"] == "cancelled"
    assert cancelled["completed_at"] is not None
    assert api.ask("PATCH", path, json={"status": "cancelled"}).status == 200
    back = api.ask("PATCH", path, json={"status": "pending"}).body
    assert (back["status"], back["completed_at"]) == ("pending", None)


@pytest.mark.parametrize("status", ["in_progress", "completed", "failed"])
def test_what_a_job_comes_to_is_not_set_by_clients(api: Api, status: str) -> None:
    task_id = create(api)
    answer = api.ask("PATCH", f"{ROOT}/{task_id}", json={"status": status})
    assert (answer.status, answer.body["type"]) == (409, "urn:callboard:problem:conflict")
    assert task(api, task_id)["status"] == "pending"


def test_a_task_is_deleted(api: Api) -> None:
    task_id = create(api)
    assert api.ask("DELETE", f"{ROOT}/{task_id}").status == 204
    assert api.get(f"{ROOT}/{task_id}").status == 404


def test_pages_skip_and_repeat_nothing_while_tasks_arrive(api: Api) -> None:
    made = [create(api, description=str(number)) for number in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.ask("GET", ROOT, params={"limit": 2, **cursor}).body
        seen += [one["task_id"] for one in page["tasks"]]
        create(api, description="meanwhile")
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == made[::-1]


def test_the_list_is_filtered_by_status_and_type(api: Api) -> None:
    waiting, running = create(api), create(api, task_type="research")
    execute(api, running)

    def listed(**filters: str) -> list[str]:
        answer = api.ask("GET", ROOT, params=filters)
        assert answer.status == 200
        return [one["task_id"] for one in answer.body["tasks"]]

    assert listed() == [running, waiting]
    assert listed(status="pending") == [waiting]
    assert listed(status="in_progress", task_type="research") == [running]
    assert listed(task_type="agent.run", status="in_progress") == []


@pytest.mark.parametrize(
    "query",
    [
        {"status": "done"},
        {"limit": "0"},
        {"limit": "501"},
        {"cursor": "xyz"},
        {"cursor": "MSAy"},
        {"task_type": "\x00"},
    ],
    ids=str,
)
def test_a_list_that_can_not_be_is_refused(api: Api, query: dict[str, str]) -> None:
    assert api.ask("GET", ROOT, params=query).status == 422


def test_the_job_of_a_task_is_shown_as_any_other(api: Api) -> None:
    job_id = execute(api, create(api))
    answer = api.get(f"/jobs/{job_id}")
    assert (answer.status, answer.body["type"], answer.body["state"]) == (200, "agent.run", "pending")
    assert UUID(answer.body["job_id"]) == UUID(job_id)
