"""`callboard dead-letters` as an operator uses it, with a real worker behind it."""

import json
import subprocess

import pytest

from service.broker import RedisBroker
from tests.e2e.conftest import BIN, Service
from tests.jobs import send, state_of
from tests.servers import eventually

ACTORS = {"CALLBOARD_ACTORS": "dead_jobs"}


@pytest.fixture
def callboard(service: Service):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "callboard", "dead-letters", *arguments],
            env={**service.environment, **ACTORS},
            capture_output=True,
            text=True,
            cwd=service.folder,
        )

    return run


def test_an_operator_lists_shows_edits_replays_and_deletes(service: Service, broker: RedisBroker, callboard) -> None:
    service.start_worker("worker", **ACTORS)
    messages = [send(broker, "dead.all", n=n) for n in range(3)]
    failed = send(broker, "dead.die", "error")
    dead = [*messages, failed]
    eventually(lambda: all(state_of(broker, message) == "dead" for message in dead))
    job_id = messages[0].message_id

    listed = callboard("list", "--function", "dead.all").stdout.splitlines()
    assert {line.split()[1] for line in listed} == {message.message_id for message in messages}
    assert "default dead.all failed service.errors.Permanent: no " in listed[0]
    first = callboard("list", "--limit", "1", "--json").stdout.splitlines()
    assert json.loads(first[0])["reason"] == "failed"
    assert first[1].startswith("more: --cursor ")
    assert callboard("list", "--limit", "9", "--cursor", first[1].split()[-1]).stdout.count("\n") == 3

    assert all(line.endswith("…") == (len(line.split(" failed ")[1]) > 60) for line in listed)
    assert callboard("list", "--error-type", "Permanent").stdout.splitlines() == listed
    assert callboard("list", "--function", "nope").stdout == "None.\n"
    assert callboard("list", "--function", "nope", "--json").stdout == ""

    shown = json.loads(callboard("show", job_id).stdout)
    assert (shown["job_id"], shown["payload"]["kwargs"]) == (job_id, {"n": 0})

    refused = callboard("replay", job_id, "--payload", '{"n": "many"}')
    assert refused.returncode == 1
    assert "n: Input should be a valid integer" in refused.stderr
    assert callboard("replay", "--all", "--function", "dead.all", "--dry-run").stdout.splitlines() == [
        "3 default dead.all failed",
        "3 would be replayed, 0 skipped",
    ]
    done = callboard("replay", job_id, "--payload", '{"n": 7}', "--by", "ada", "--why", "typo", "--request", "r")
    assert done.stdout == f"{job_id} replayed\n", done.stderr
    assert f"A dead letter was replayed job_id={job_id}" in done.stderr
    assert "by=ada why=typo" in done.stderr
    eventually(lambda: callboard("show", job_id).returncode == 0)
    [replay] = json.loads(callboard("show", job_id).stdout)["replays"]
    assert (replay["by"], replay["why"], replay["changes"]) == ("ada", "typo", {"n": {"from": "0", "to": "7"}})
    assert "before by this request" in callboard("replay", job_id, "--request", "r").stdout

    deleted = callboard("delete", failed.message_id, "--by", "ada", "--why", "paid twice")
    assert deleted.stdout == f"{failed.message_id} deleted\n"
    assert f"A dead letter was deleted job_id={failed.message_id}" in deleted.stderr
    assert 'by=ada why="paid twice"' in deleted.stderr
    assert state_of(broker, failed) == "dead"
    gone = callboard("show", failed.message_id)
    assert (gone.returncode, gone.stderr) == (1, f"There is no dead letter of the job {failed.message_id}\n")
    assert "known reasons: failed, crashed" in callboard("list", "--reason", "odd").stderr
    assert "known queues" in callboard("list", "--queue", "odd").stderr
    assert "either one JOB_ID or --all" in callboard("replay").stderr


def test_what_is_personal_is_not_shown(service: Service, broker: RedisBroker, callboard) -> None:
    service.start_worker("worker", **ACTORS)
    message = send(broker, "dead.personal", mail="ada@example.com", n=1)
    job_id = message.message_id
    eventually(lambda: state_of(broker, message) == "dead")
    edited = callboard("replay", job_id, "--payload", '{"mail": "bob@example.com", "n": 2}')
    assert edited.returncode == 0, edited.stderr
    eventually(lambda: callboard("show", job_id).returncode == 0)
    shown, listed = callboard("show", job_id).stdout, callboard("list", "--json").stdout
    assert "example.com" not in shown + listed
    letter = json.loads(shown)
    assert letter == json.loads(listed)
    assert letter["payload"] == {"args": [], "kwargs": {"mail": "***", "n": 2}}
    mail, n = {"from": "***", "to": "***"}, {"from": "1", "to": "2"}
    assert letter["replays"][0]["changes"] == {"mail": mail, "n": n}

    service.environment["CALLBOARD_ACTORS"] = "nowhere"
    unknown = subprocess.run(
        [BIN / "callboard", "dead-letters", "show", job_id], env=service.environment, capture_output=True, text=True
    )
    assert json.loads(unknown.stdout)["payload"] == {"args": [], "kwargs": {"mail": "***", "n": "***"}}
    assert "there is no module 'nowhere'" in unknown.stderr
