"""What operators do by commands is in the audit log, where there is a database; what the page on access names works."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from sqlalchemy import text

from service.access.audit import AuditLine, AuditLog
from service.access.keys import KeyStore
from service.broker import RedisBroker
from service.broker.outcome import Dead, Failure
from service.broker.settlement import settlement_of
from service.cli.who import user
from service.state.database import engine_for
from tests.e2e.conftest import BIN, Service
from tests.jobs import send

ACCESS = Path(__file__).parents[2] / "docs" / "access.md"


@pytest.fixture
def callboard(service: Service) -> Any:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**service.environment, **environment}
        command = [BIN / "callboard", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, cwd=service.folder)

    return run


@pytest.fixture
def log(service: Service, database_url: str) -> Iterator[AuditLog]:
    service.environment["DATABASE_URL"] = database_url
    engine = engine_for(database_url)
    yield AuditLog(engine)
    engine.dispose()


def told(line: AuditLine) -> tuple[Any, ...]:
    assert (line.who, bool(line.ended_at)) == (f"cli:{user()}", True)
    return line.what, line.filter, line.count, line.why, line.status


def test_acts_on_jobs_and_queues_are_written_down(broker: RedisBroker, callboard: Any, log: AuditLog) -> None:
    job_id = send(broker, "email.send", queue="email").message_id
    for command in (
        f"jobs move {job_id} --priority 0 --by ada",
        f"jobs cancel {job_id} --why mistake",
        "queues pause email --why night",
        "queues purge email --dry-run",
        "queues purge email --confirm email --keep",
        "queues resume email",
    ):
        done = callboard(*command.split())
        assert done.returncode == 0, done.stderr
    assert [told(line) for line in reversed(log.page())] == [
        ("callboard jobs move", {"job_id": job_id, "by": "ada"}, 1, "", 200),
        ("callboard jobs cancel", {"job_id": job_id}, 1, "mistake", 200),
        ("callboard queues pause", {"queue": "email"}, 1, "night", 200),
        ("callboard queues purge", {"queue": "email", "keep": True}, 0, "", 200),
        ("callboard queues resume", {"queue": "email"}, 1, "", 200),
    ]


def test_acts_on_dead_letters_are_written_down(broker: RedisBroker, callboard: Any, log: AuditLog) -> None:
    declare: Any = dramatiq.actor
    declare(lambda: None, broker=broker, actor_name="email.send", queue_name="email")
    jobs = [send(broker, "email.send", queue="email").message_id for _ in range(3)]
    deliveries = broker.fetch("email", 3)[0]
    for delivery in deliveries:
        delivery.outcome = Dead(Failure("ValueError", "no", ""))
    broker.settle("email", [settlement_of(delivery) for delivery in deliveries])
    for command in (
        f"dead-letters replay {jobs[0]} --why mended",
        f"dead-letters delete {jobs[1]} --by ada",
        "dead-letters replay --all --queue email --dry-run",
        "dead-letters replay --all --queue email",
    ):
        done = callboard(*command.split())
        assert done.returncode == 0, done.stderr
    assert [told(line) for line in reversed(log.page())] == [
        ("callboard dead-letters replay", {"job_id": jobs[0]}, 1, "mended", 200),
        ("callboard dead-letters delete", {"job_id": jobs[1], "by": "ada"}, 1, "", 200),
        ("callboard dead-letters replay", {"queue": "email"}, 1, "", 200),
    ]


def test_what_can_not_be_written_down_is_not_done_and_without_a_database_it_is(
    broker: RedisBroker, callboard: Any
) -> None:
    away = callboard("queues", "pause", "email", DATABASE_URL="postgresql://callboard@127.0.0.1:1/none")
    assert away.returncode != 0
    assert "Nothing was done, since the audit log can't be written" in away.stderr
    assert "Traceback" not in away.stderr
    assert callboard("queues", "resume", "email").stdout == "email is not paused\n"


def test_an_act_that_fails_says_so_in_its_line(callboard: Any, log: AuditLog) -> None:
    assert callboard("schedules", "pause", "nope", "--why", "x").returncode != 0
    assert [told(line) for line in log.page()] == [
        ("callboard schedules pause", {"schedule": "nope"}, None, "x", 404),
    ]


def test_the_commands_of_the_page_on_access_do_what_it_says(callboard: Any, log: AuditLog, database_url: str) -> None:
    named = re.findall(r"`callboard (keys [^`]+)`", ACCESS.read_text())
    assert [command.split()[1] for command in named] == ["create", "list", "rotate", "revoke"]
    said = [callboard(*command.replace("NAME", "shop").split()) for command in named]
    assert [done.returncode for done in said] == [0] * 4, [done.stderr for done in said]
    tokens = [re.findall(r"cb_\w+", done.stdout) for done in said]
    assert [len(set(found)) for found in tokens] == [1, 0, 1, 0]
    assert tokens[0] != tokens[2]
    assert "shop submit tenant=-" in said[1].stdout
    assert [told(line)[:3] for line in reversed(log.page())] == [
        ("callboard keys create", {"name": "shop", "scopes": ["submit"], "tenant": None}, 1),
        ("callboard keys rotate", {"key": "shop"}, 1),
        ("callboard keys revoke", {"key": "shop"}, 1),
    ]
    engine = engine_for(database_url)
    [key] = KeyStore(engine).all()
    engine.dispose()
    assert key.revoked_at is not None
    assert callboard("keys", "revoke", "nobody").returncode != 0
    assert told(log.page(limit=1)[0])[:3] == ("callboard keys revoke", {"key": "nobody"}, 0)
    unknown = callboard("keys", "create", "x", "--scope", "all")
    assert unknown.returncode != 0
    assert "Unknown scope all" in unknown.stderr


def test_a_secret_is_shown_also_where_the_end_of_its_act_can_not_be_written(
    callboard: Any, log: AuditLog, database_url: str
) -> None:
    with engine_for(database_url).begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no room''; END'; "
                "CREATE TRIGGER refuse BEFORE UPDATE ON callboard_audit EXECUTE FUNCTION refuse()"
            )
        )
    made, again = (callboard("keys", "create", "shop", "--scope", "submit") for _ in range(2))
    assert made.returncode == again.returncode == 1
    assert re.search("cb_[0-9a-f]{16}_[0-9a-f]{64}", made.stdout)
    assert "It was done, and its end can't be written" in made.stderr
    assert "there is a key 'shop' already" in again.stderr, "why it failed"
    assert "It was done" not in again.stderr
    assert [line.ended_at for line in log.page()] == [None, None]
