"""`callboard queues`, `jobs` and `workers` as an operator uses them, with real workers behind them."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.broker import RedisBroker
from tests.e2e.conftest import BIN, Service
from tests.jobs import send, state_of
from tests.servers import eventually

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.fixture
def callboard(service: Service) -> Any:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "callboard", *arguments], env=service.environment, capture_output=True, text=True, cwd=service.folder
        )

    return run


def test_the_commands_of_the_guide_do_what_it_says(service: Service, broker: RedisBroker, callboard: Any) -> None:
    [block] = [text for text in re.findall(r"```sh\n(.*?)```", OPERATING.read_text(), re.DOTALL) if "queues" in text]
    sourced, *lines = block.splitlines()
    assert sourced == ". .callboard/env"
    jobs = [send(broker, "email.send", queue="email") for _ in range(3)]
    cancelled, moved = send(broker, "email.send", queue="email"), send(broker, "email.send", queue="email")
    said: list[str] = []
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == ".venv/bin/callboard"
        if arguments[:2] == ["queues", "resume"]:
            cancelled, moved = (send(broker, "email.send", queue="email") for _ in range(2))
        named = {"0d2f1a3c-6a1e-4c53-9d0b-6f0c7f4a1b52": cancelled, "5a0c1d1e-0b55-4d4e-8f5c-0e6b1c9a7d10": moved}
        arguments = [named[each].message_id if each in named else each for each in arguments]
        done = callboard(*arguments)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0].splitlines()[1].split() == ["email", "5", "0", "0", "0", "0", "0", "0", said[0].split()[18]]
    assert said[1:] == [
        "email is paused\n",
        "5 jobs of email would be purged\n",
        "5 jobs of email are dead letters now\n",
        "email goes on\n",
        "None.\n",
        f"{cancelled.message_id} is cancelled\n",
        f"{moved.message_id} is pending with priority 0\n",
    ]
    assert {state_of(broker, message) for message in jobs} == {"dead"}
    assert state_of(broker, cancelled) == "cancelled"


def test_workers_pauses_and_running_jobs_are_shown(service: Service, broker: RedisBroker, callboard: Any) -> None:
    service.start_worker("worker")
    message = send(broker, "sample.slow", word="a", seconds=60)
    eventually(lambda: state_of(broker, message) == "running")
    eventually(lambda: message.message_id in callboard("workers").stdout, 20)
    lines = callboard("workers").stdout.splitlines()
    assert "4 threads, 1 running, working, version" in lines[0]
    assert lines[1].startswith(f"    {message.message_id} sample.slow, attempt 1, for ")
    [worker] = [json.loads(line) for line in callboard("workers", "--json").stdout.splitlines()]
    assert [job["job_id"] for job in worker["jobs"]] == [message.message_id]

    assert callboard("queues", "pause", "default", "--by", "ada", "--why", "a move").returncode == 0
    assert re.search(r"^default is paused since \S+ by ada: a move$", callboard("queues").stdout, re.MULTILINE)
    rows = [json.loads(line) for line in callboard("queues", "list", "--json").stdout.splitlines()]
    assert {row["name"]: row["running"] for row in rows}["default"] == 1

    done = callboard("jobs", "cancel", message.message_id)
    assert (done.returncode, done.stdout) == (0, f"{message.message_id} runs, and its worker is told to stop it\n")


def test_what_can_not_be_done_is_said_and_fails(service: Service, broker: RedisBroker, callboard: Any) -> None:
    unknown = "5a0c1d1e-0b55-4d4e-8f5c-0e6b1c9a7d10"
    waiting = send(broker, "sample.note", word="a")
    done = callboard("jobs", "cancel", unknown, waiting.message_id)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{unknown} is not on a queue: unknown, or ended some time ago",
        f"{waiting.message_id} is cancelled",
    ]
    for arguments, words in (
        (("queues", "purge", "default"), "Say --confirm default"),
        (("queues", "purge", "default", "--confirm", "email"), "Say --confirm default"),
        (("queues", "pause", "emial"), "Unknown queue 'emial'; known queues: email, default"),
        (("jobs", "move", waiting.message_id), "Say --priority, --delay, --at or --now"),
        (("jobs", "move", waiting.message_id, "--now"), "is cancelled: only a job that waits"),
        (("jobs", "move", unknown, "--priority", "1"), "is not on a queue"),
        (("jobs", "move", unknown, "--delay", "8d"), "must be at most 604800 seconds"),
        (("jobs", "move", unknown, "--delay", "soon"), "TIME='soon' must be seconds over 0"),
        (("jobs", "move", unknown, "--at", "soon"), "must be ISO 8601"),
    ):
        done = callboard(*arguments)
        assert done.returncode in (1, 2)
        assert words in done.stderr
