"""`callboard schedules` on real servers."""

import json
import subprocess

from tests.e2e.conftest import BIN, Service


def run(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "callboard", "schedules", *arguments],
        env=service.environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=service.folder,
        check=False,
    )


def test_schedules_are_listed_paused_resumed_and_run(service: Service, database_url: str) -> None:
    service.environment |= {
        "CALLBOARD_ACTORS": "schedule_jobs",
        "CALLBOARD_SCHEDULES": "schedule_jobs:MONITORED",
        "DATABASE_URL": database_url,
    }
    listed = [json.loads(line) for line in run(service, "list", "--json", "--next", "2").stdout.splitlines()]
    assert [(each["name"], each["source"], each["state"]) for each in listed] == [
        ("bad", "code", "active"),
        ("good", "code", "active"),
    ]
    assert all(time.endswith(" Europe/Berlin") for time in listed[0]["next_times"])
    assert run(service, "pause", "good", "--why", "a test").stdout == "good paused\n"
    assert "good code paused" in run(service, "list").stdout
    sent = run(service, "run", "good")
    assert sent.stdout.startswith("good sent "), sent.stderr
    assert run(service, "resume", "good").stdout == "good resumed\n"
    assert "good code active" in run(service, "list").stdout
    missing = run(service, "pause", "nobodys")
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (1, "Schedule nobodys not found")
    wrong = run(service, "preview", "* * * * 9")
    assert wrong.returncode == 1
    assert "'9'" in wrong.stderr
