"""The guides' examples are run: those of testing.md by pytest, with the plugin and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def snippets_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)


def run_tests(folder: Path, code: str) -> str:
    (folder / "test_of_a_user.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "service.testing.plugin", "-p", "no:cacheprovider"]
    # Where Callboard is installed, pytest would load the plugin by its entry point as well.
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_of_the_testing_guide_passes_as_it_stands(tmp_path: Path) -> None:
    snippets = snippets_of("testing.md")
    tests = sum(snippet.count("\ndef test_") + snippet.startswith("def test_") for snippet in snippets)
    assert tests == len(snippets) - 1 == 3
    assert f"{tests} passed" in run_tests(tmp_path, "\n\n".join(snippets))


CHECKS = """
import pytest
from dramatiq.message import Message
from service.broker import broker
from service.errors import PayloadError
from service.payload import masked


def test_a_reference_is_sent_in_place_of_the_object(callboard):
    STORE.mkdir()
    receive(b"x" * 300_000)
    assert [run.result for run in callboard.drain()] == [300_000]
    with pytest.raises(PayloadError, match="store the object, and send its name"):
        read_scan.send(scan="x" * 300_000)


def test_old_names_and_old_payloads_are_understood(callboard):
    broker.enqueue(Message("default", "people.greet", (), {"name": "Ada Lovelace"}, {}))
    broker.enqueue(Message("default", "people.hello", (), {"first": "Ada"}, {}))
    assert [run.result for run in callboard.drain()] == ["Hello, Ada of the Lovelaces", "Welcome, Ada"]


def test_what_is_personal_is_masked():
    assert masked(invite, {"mail": "ada@example.org", "team": "red"}) == {"mail": "***", "team": "red"}
"""


def test_the_examples_of_the_payload_guide_do_what_it_says(tmp_path: Path) -> None:
    assert "3 passed" in run_tests(tmp_path, "\n\n".join([*snippets_of("payloads.md"), CHECKS]))


TASKS = """
from service.broker import broker
from service.tasks.types import known_types


def test_it_carries_tasks_out():
    assert known_types(broker) == ["look-up", "research", "research.run"]
    assert research(task_id="1", task_type="look-up", description="x") == {"answer": "look-up: x"}
"""


def test_the_example_of_the_guide_of_tasks_carries_tasks_out(tmp_path: Path) -> None:
    assert "1 passed" in run_tests(tmp_path, "\n\n".join([*snippets_of("task-queue.md"), TASKS]))
