"""The guide of schedules: its table is a table, its request is one, its commands are understood."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from actors.email import EmailJobPayload
from service.cli import schedules as command
from service.schedules import Schedule
from service.schedules.code_table import load_table
from service.schedules.decide import ON_TIME
from service.schedules.document import ScheduleDocument
from service.schedules.due import next_times

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/schedules.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_table_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = blocks("python")
    (tmp_path / "guide_schedules.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    table = {schedule.name: schedule for schedule in load_table("guide_schedules:SCHEDULES")}
    assert list(table) == ["weekly-report", "clean-up", "payday", "launch", "sync"]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    first = {name: next_times(schedule, start, 1)[0].isoformat()[:16] for name, schedule in table.items()}
    assert first == {
        "weekly-report": "2026-01-05T06:30",
        "clean-up": "2026-01-01T06:00",
        "payday": "2026-01-09T05:00",
        "launch": "2026-07-01T07:00",
        "sync": "2026-01-01T00:10",
    }


def test_the_options_of_the_guide_are_those_of_a_schedule_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| (`.*?`) \| .*? \| ([^|]*) \|$", GUIDE, re.MULTILINE))
    plain = Schedule("s", "x", next(iter([Schedule("t", "x", _Never())])).when)
    for names, default in rows.items():
        for name in re.findall(r"`(\w+)`", names):
            if hasattr(plain, name):
                shown = getattr(plain, name)
                assert default in ("none", "no limit", "never") if shown is None else default.strip("`") == str(shown)
    assert timedelta(seconds=10) == ON_TIME
    assert "within ten seconds" in GUIDE


class _Never:
    def after(self, moment: datetime) -> datetime | None:
        return None


def test_the_request_of_the_guide_is_one() -> None:
    [text] = blocks("json")
    document = ScheduleDocument.model_validate(json.loads(text))
    EmailJobPayload.model_validate(document.payload)
    assert document.to_schedule().after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 5, 6, 30, tzinfo=UTC)


def test_the_commands_of_the_guide_are_understood() -> None:
    [block] = blocks("sh")
    sourced, *lines = block.splitlines()
    assert sourced == ". .callboard/env"
    acts = [parsed(line) for line in lines]
    assert acts == ["list", "pause", "resume", "run", "preview"]


def parsed(line: str) -> str:
    program, name, *rest = shlex.split(line)
    assert (program, name) == (".venv/bin/callboard", "schedules")
    parser = argparse.ArgumentParser()
    command.configure(parser)
    parser.parse_args(rest)
    return rest[0]


def test_the_preview_says_when_with_zone_and_offset_and_needs_no_server() -> None:
    line = ["schedules", "preview", "30 7 * * 1", "--timezone", "Europe/Berlin", "--next", "2"]
    code = f"from service.cli import main; main({[*line, '--after', '2026-03-23T00:00:00Z']!r})"
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == [
        "2026-03-23T07:30:00+01:00 Europe/Berlin",
        "2026-03-30T07:30:00+02:00 Europe/Berlin",
    ]
