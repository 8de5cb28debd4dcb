"""The README word for word: its commands are run in a fresh copy of the project, and its answers are compared."""

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import eventually, free_port
from tests.up.home import Home

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SEND = "curl -s $CALLBOARD_URL/jobs -H 'Content-Type: application/json' -d"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
WORKER = re.compile(r'"worker": "[^"]+:[0-9]+:[0-9a-f]{8}"')


@dataclass
class Block:
    language: str
    text: str


BLOCKS = [Block(*match) for match in re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)]


class Copy:
    """A copy of the project's files and nothing else, with `./dev up` in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder)
        for name in tracked_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        own = ("REDIS_URL", "DATABASE_URL", "CALLBOARD_", "VIRTUAL_ENV")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        self.output = folder / "up.output"

    def up(self) -> subprocess.Popen[bytes]:
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                ["./dev", "up"], cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        eventually(lambda: process.poll() is not None or "Send a first job" in self.output.read_text(), 150)
        assert process.poll() is None, self.output.read_text()
        return process

    def shell(self, script: str) -> str:
        """Run lines in a shell that has sourced the addresses, as the README's second shell has."""
        done = subprocess.run(
            ["sh", "-ec", f". .callboard/env\n{script}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runs_until_told(self, line: str) -> None:
        """Start a worker by its line, see it ready, and stop it."""
        output = self.folder / "worker.output"
        port = free_port()
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["sh", "-ec", f". .callboard/env\nexport CALLBOARD_WORKER_PORT={port}\nexec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        eventually(lambda: process.poll() is not None or "ready for action" in output.read_text(), 30)
        assert process.poll() is None, output.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    copy = Copy(tmp_path)
    yield copy
    copy.home.clean()


def take(language: str, blocks: list[Block]) -> str:
    block = blocks.pop(0)
    assert block.language == language, block.text
    return block.text


def without_what_varies(document: Any) -> Any:
    return json.loads(WORKER.sub('"worker": "W"', TIME.sub("TIME", UUID.sub("ID", json.dumps(document)))))


def same(answer: str, printed: str) -> bool:
    return without_what_varies(json.loads(answer)) == without_what_varies(json.loads(printed))


@pytest.mark.timeout(420)
def test_the_readme_word_for_word_in_an_empty_folder(copy: Copy) -> None:
    blocks = list(BLOCKS)
    two_commands = [line.split("#")[0].strip() for line in take("sh", blocks).splitlines()]
    assert two_commands == ["./dev up", "./dev test"]  # the second is what runs this test
    supervisor = copy.up()

    sent = copy.shell(take("sh", blocks))
    assert same(sent, take("json", blocks))
    read = take("sh", blocks)
    shown = UUID.search(read)
    assert shown
    read = read.replace(shown.group(), json.loads(sent)["job_id"])
    expected = take("json", blocks)
    eventually(lambda: same(copy.shell(read), expected))

    printed = copy.shell(take("sh", blocks))
    assert UUID.fullmatch(printed.strip())
    assert UUID.fullmatch(take("text", blocks).strip())
    from_python = f"curl -s $CALLBOARD_URL/jobs/{printed.strip()}"
    eventually(lambda: same(copy.shell(from_python), expected))
    assert len(list((copy.folder / ".callboard/mail").glob("*.eml"))) == 2

    actor = take("python", blocks)
    assert len(actor.strip().splitlines()) <= 15
    (copy.folder / "actors/greeting.py").write_text(actor)
    sent = copy.shell(take("sh", blocks))
    assert supervisor.wait(30) == 0
    greeting = f"curl -s $CALLBOARD_URL/jobs/{json.loads(sent.splitlines()[-1])['job_id']}"
    eventually(lambda: json.loads(copy.shell(greeting)).get("result") == {"greeting": "Hello, Ada! "})
    assert same(copy.shell(take("sh", blocks)), take("json", blocks))

    project = copy.folder / "a project"
    (project / "mypackage").mkdir(parents=True)
    (project / "mypackage/__init__.py").write_text(actor.replace("greeting.say", "own.say"))
    own = take("sh", blocks).strip().replace("/path/to/project", f"'{project}'")
    assert "Send a first job" in copy.shell(f"./dev down\n{own} --detach")
    sent = copy.shell(f'{SEND} \'{{"type": "own.say", "payload": {{"name": "Ada"}}}}\'')
    own_job = f"curl -s $CALLBOARD_URL/jobs/{json.loads(sent)['job_id']}"
    eventually(lambda: json.loads(copy.shell(own_job)).get("result") == {"greeting": "Hello, Ada! "})

    for line in take("sh", blocks).splitlines():
        copy.runs_until_told(line)
    copy.runs_until_told("./dev worker email")
    copy.shell("./dev down")
    assert copy.home.processes() == []

    # The tests of the wheel install what these name.
    assert take("sh", blocks) == "pip install /path/to/callboard\n"
    installed, started = take("sh", blocks).splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\[(.*)\]", installed)[0].split(",")) <= set(extras)
    assert started == "CALLBOARD_ACTORS=mypackage callboard up --detach"
    assert blocks == []
