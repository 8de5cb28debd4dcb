"""Check-ins with Sentry, as a real server gets them over HTTP."""

import gzip
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import pytest

from service.schedules import Cron, Every, Once, Schedule
from service.schedules.check_ins import monitor_config, slug_of
from tests.e2e.conftest import Service, service  # noqa: F401
from tests.schedules.conftest import START
from tests.servers import eventually


class Sentry:
    """Takes envelopes, and keeps the check-ins in them."""

    def __init__(self) -> None:
        self.check_ins: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self.server.server_address[1]}/7"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/api/7/envelope/"
        lines = body.split(b"\n")
        items = zip(lines[1::2], lines[2::2], strict=False)
        self.check_ins += [json.loads(item) for head, item in items if json.loads(head)["type"] == "check_in"]

    def of(self, slug: str) -> list[dict[str, Any]]:
        return [each for each in self.check_ins if each["monitor_slug"] == slug]


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    server = Sentry()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.parametrize("with_database", [False, True], ids=["redis", "redis-and-postgresql"])
def test_each_job_checks_in_at_its_start_and_at_its_final_end(
    service: Service,  # noqa: F811
    sentry: Sentry,
    request: pytest.FixtureRequest,
    with_database: bool,
) -> None:
    service.environment |= {
        "CALLBOARD_ACTORS": "schedule_jobs",
        "CALLBOARD_SCHEDULES": "schedule_jobs:MONITORED",
        "SENTRY_DSN": sentry.dsn,
    }
    if with_database:
        service.environment["DATABASE_URL"] = request.getfixturevalue("database_url")
        service.start("projector", "callboard", "projector")
    service.start_worker()
    service.start("scheduler", "callboard", "scheduler")
    # They are due each minute.
    eventually(lambda: len(sentry.of("good")) >= 2 and len(sentry.of("bad")) >= 2, 100)
    assert [each["status"] for each in sentry.of("good")[:2]] == ["in_progress", "ok"]
    # The job is tried again once before it is dead: one check-in for both attempts.
    assert [each["status"] for each in sentry.of("bad")[:2]] == ["in_progress", "error"]
    for slug in ("good", "bad"):
        begun, ended = sentry.of(slug)[:2]
        assert begun["check_in_id"] == ended["check_in_id"]
        assert UUID(begun["check_in_id"])
        assert ended["duration"] >= 0
        assert begun["monitor_config"] == {
            "schedule": {"type": "crontab", "value": "* * * * *"},
            "timezone": "Europe/Berlin",
            "checkin_margin": 1,
        }
    if with_database:  # it alone knows when the first attempt began
        assert sentry.of("bad")[1]["duration"] >= 0.5


def config(when: Any, **more: Any) -> Any:
    return monitor_config(Schedule("s", "x", when, **more))


def test_a_monitor_is_what_sentry_has_a_word_for() -> None:
    assert config(Cron("0 2 * * SUN"))["schedule"] == {"type": "crontab", "value": "0 2 * * sun"}
    assert config(Every(days=14))["schedule"] == {"type": "interval", "value": 2, "unit": "week"}
    assert config(Every(weeks=1, days=1))["schedule"] == {"type": "interval", "value": 8, "unit": "day"}
    assert config(Every(seconds=7200))["schedule"] == {"type": "interval", "value": 2, "unit": "hour"}
    assert config(Every(minutes=90))["schedule"] == {"type": "interval", "value": 90, "unit": "minute"}
    assert config(Every(minutes=90), jitter="5m")["checkin_margin"] == 6
    assert config(Every(seconds=90)) is None
    assert config(Once(START + timedelta(days=1))) is None


def test_a_slug_is_what_sentry_takes_and_tells_names_apart() -> None:
    assert slug_of("nightly-report_2") == "nightly-report_2"
    slugs = [slug_of(name) for name in ("Nightly", "nightly", "nightly.", "n" * 80, "n" * 81, "夜")]
    assert len(set(slugs)) == len(slugs)
    assert all(0 < len(slug) <= 50 and slug.strip("-") == slug for slug in slugs)


def test_without_a_dsn_nothing_of_sentry_is_imported() -> None:
    import subprocess
    import sys

    code = "import sys, service.schedules.runner, service.schedules.parts; print('sentry_sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
