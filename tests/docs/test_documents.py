"""The documents agree with the code: links, tables, commands and examples."""

import argparse
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from actors.email import EmailJobPayload
from service import errors
from service.api.metrics import Requests, queue_families
from service.broker.depths import QueueDepth
from service.cli import COMMANDS, dead_letters
from service.queues import QUEUES, Backoff
from service.settings import Settings, variable_of
from service.state.differences import Difference, Findings
from service.state.states import STATUS_OF, TRANSITIONS, State

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = (document.parent / path).resolve() if path else document
            assert file.exists(), target
            if anchor:
                headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if "\nOn this page: " in each.read_text()], ids=lambda path: path.name
)
def test_the_index_of_a_page_has_all_its_headings_in_order(document: Path) -> None:
    text = document.read_text()
    listed = re.findall(r"\(#([^)]+)\)", text.partition("\nOn this page: ")[2].partition("\n\n")[0])
    assert listed == [each.lower().replace(" ", "-") for each in re.findall(r"^## (.+)$", text, re.MULTILINE)]


def table_with(document: str, first_cell: str) -> dict[str, list[str]]:
    """The rows of the table whose heading begins with a cell, by their first cell."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0].strip("`")] = cells[1:]
    return rows


def test_every_setting_is_documented_as_it_is() -> None:
    rows = table_with("operating.md", "variable")
    assert list(rows) == [variable_of(name) for name in Settings.model_fields]
    for name, field in Settings.model_fields.items():
        description, default, example = rows[variable_of(name)]
        assert description == field.description
        assert default == ("" if field.default is None else f"`{field.default}`")
        assert example == f"`{(field.examples or [''])[0]}`"


def test_every_queue_is_documented_as_it_is() -> None:
    rows = table_with("operating.md", "queue")
    assert list(rows) == list(QUEUES)
    for name, policy in QUEUES.items():
        concurrency, processes, limit, attempts, lease, ahead = rows[name]
        assert (int(concurrency), int(processes), int(attempts)) == (
            policy.concurrency,
            policy.processes,
            policy.max_attempts,
        )
        assert f"{policy.time_limit_seconds:g} s" in limit
        assert ("soft" in limit) == (policy.soft_time_limit_seconds is not None)
        assert lease == f"{policy.lease_seconds:g} s"
        assert ahead == ("yes" if policy.fetch_ahead else "no")


def test_every_state_is_documented_as_it_is() -> None:
    rows = table_with("architecture.md", "state")
    assert set(rows) == set(State)
    for state in State:
        status, targets = rows[state]
        assert status == STATUS_OF[state]
        named = {word for word in re.findall(r"[a-z]+", re.sub(r"\(.*?\)", "", targets)) if word != "nowhere"}
        assert named == set(TRANSITIONS[state])


def test_every_metric_is_documented() -> None:
    families = [
        *queue_families({"email": QueueDepth(1, 2, 3, 4, 5.0)}),
        *Requests().registry.collect(),
    ]
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert list(table_with("operating.md", "name")) == names


def test_every_metric_of_the_projector_is_documented() -> None:
    families = Findings().registry.collect()
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    table = table_with("lost-redis.md", "metric")
    assert list(table) == names
    assert set(re.findall(r"`(\w+)`, ", table[names[0]][1])) == set(Difference)


def test_every_command_that_is_named_exists() -> None:
    known = {command.name for command in COMMANDS}
    for document in DOCUMENTS:
        for name in re.findall(r"`callboard ([a-z-]+)", document.read_text()):
            assert name in known, f"{document.name}: callboard {name}"


def test_the_commands_of_the_guide_of_dead_letters_are_understood() -> None:
    [block] = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/dead-letters.md").read_text(), re.DOTALL)
    sourced, *lines = block.replace("\\\n", "").splitlines()
    assert sourced == ". .callboard/env"
    acts = [command_line(line) for line in lines]
    assert [act for act, _ in acts] == ["list", "show", "replay", "delete"]
    EmailJobPayload.model_validate(acts[2][1].payload)


def command_line(line: str) -> tuple[str, argparse.Namespace]:
    """The act of a line, and its options as the command reads them."""
    program, command, *rest = shlex.split(line)
    assert (program, command) == (".venv/bin/callboard", "dead-letters")
    parser = argparse.ArgumentParser()
    dead_letters.configure(parser)
    return rest[0], parser.parse_args(rest)


def test_every_use_of_dev_that_is_named_exists() -> None:
    script = (ROOT / "dev").read_text()
    for document in DOCUMENTS:
        for name in re.findall(r"\./dev ([a-z0-9]+)", document.read_text()):
            assert re.search(rf"^ +{name}\) |^ +check \| {name}|\| {name}\b|\b{name}\)", script, re.MULTILINE), name


def test_the_examples_of_the_actors_guide_run(tmp_path: Path) -> None:
    guide = (ROOT / "docs/actors.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(examples) >= 5
    checks = """
print(render_invoice.message(invoice_id=7).kwargs)
print(send_receipt.message(to="a:b", order_id=7).options)
print(sync_account.message(account="a").options, JobExists.status)
print(send_invoice.message(Invoice(invoice_id=7)).kwargs)
print(count_words.message("a b").args)
"""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*examples, checks])], capture_output=True, text=True, env={}, cwd=tmp_path
    )
    assert done.stdout.splitlines() == [
        "{'invoice_id': 7, 'language': 'en'}",
        "{'idempotency_key': 'receipt:a%3Ab:7'}",
        "{'unique_key': 'sync:a'} 409",
        "{'invoice_id': 7, 'language': 'en'}",
        "('a b',)",
    ], done.stderr


def test_the_jitter_is_as_documented() -> None:
    assert Backoff().jitter == 0.1
    assert "up to a tenth is added at random" in (ROOT / "docs/actors.md").read_text()


def test_each_decision_has_a_number_of_its_own_and_says_it() -> None:
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(set(numbers)) == len(numbers)
    for record in records:
        assert record.read_text().startswith(f"# {record.name[:4]}: ")


def test_the_page_on_the_api_tells_of_every_status_of_an_error() -> None:
    table = (ROOT / "docs/api.md").read_text().partition("## Errors")[2].partition("\n## ")[0]
    told = Counter(int(status) for status in re.findall(r"^\| (\d{3}) \|", table, re.MULTILINE))
    kinds = Counter(kind.status for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "status"))
    del kinds[500]  # a job's own, or the base
    assert set(kinds) <= set(told)
    assert told[403] == kinds[403]
