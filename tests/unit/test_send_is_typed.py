"""What a type checker says of a `send`: the mistakes that Python itself would only find when it runs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DECLARED = """\
from pydantic import BaseModel

from service.job import current_job, job


class Order(BaseModel):
    number: int
    note: str = ""


@job(name="typed.model", queue="default")
def by_model(order: Order) -> dict[str, int]:
    return {"number": order.number}


@job(name="typed.fields", queue="default", aliases=("typed",), max_attempts=2)
def by_fields(*, number: int, note: str = "") -> int:
    return number


@job(name="typed.async", queue="default")
async def asynchronous(*, number: int) -> str:
    return str(number)


"""

# One statement a line; "" where it is right, else the rule that it breaks.
CALLS = [
    ("by_model.send(Order(number=1))", ""),
    ("by_model.send(order=Order(number=1))", ""),
    ("by_fields.send(number=1)", ""),
    ("by_fields.send(number=1, note='x')", ""),
    ("asynchronous.send(number=1)", ""),
    ("by_fields.message(number=1)", ""),
    ("direct: int = by_fields(number=1)", ""),
    ("result: dict[str, int] = by_model(Order(number=1))", ""),
    ("text: str = current_job().job_id", ""),
    ("answer: str = asynchronous(number=1)", ""),
    ("by_model.send(1)", "reportArgumentType"),
    ("by_model.send({'number': 1})", "reportArgumentType"),
    ("by_model.send()", "reportCallIssue"),
    ("by_model.send(Order(number=1), 2)", "reportCallIssue"),
    ("by_model.send(number=1)", "reportCallIssue"),
    ("by_fields.send(number='one')", "reportArgumentType"),
    ("by_fields.send(note='x')", "reportCallIssue"),
    ("by_fields.send(number=1, nots='x')", "reportCallIssue"),
    ("by_fields.send(1)", "reportCallIssue"),
    ("by_fields.message(number='one')", "reportArgumentType"),
    ("asynchronous.send(number='one')", "reportArgumentType"),
    ("asynchronous.send()", "reportCallIssue"),
    ("asynchronous.send(number=1, more=2)", "reportCallIssue"),
    ("by_fields(number='one')", "reportArgumentType"),
    ("wrong: str = by_fields(number=1)", "reportAssignmentType"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The rules that each line breaks. One run for all lines: starting the checker is what takes the time."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "calls.py").write_text(DECLARED + "".join(f"{call}\n" for call, _ in CALLS))
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "extraPaths": [str(ROOT)],
                "reportUnusedExpression": False,
            }
        )
    )
    checker = Path(sys.executable).with_name("basedpyright")
    command = str(checker) if checker.exists() else shutil.which("basedpyright")
    assert command, "basedpyright is one of the `dev` extra"
    done = subprocess.run(
        [command, "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found: dict[int, list[str]] = {}
    for item in json.loads(done.stdout)["generalDiagnostics"]:
        found.setdefault(item["range"]["start"]["line"], []).append(f"{item.get('rule')}: {item['message']}")
    return found


def test_the_declarations_themselves_are_typed(errors):
    assert not {line: found for line, found in errors.items() if line < DECLARED.count("\n")}


@pytest.mark.parametrize(("line", "call", "rule"), [(line, *each) for line, each in enumerate(CALLS)])
def test_a_call_is_checked(errors, line, call, rule):
    found = errors.get(DECLARED.count("\n") + line, [])
    if not rule:
        assert found == []
    else:
        assert found
        assert all(re.match(rf"{rule}\b", each) for each in found)
