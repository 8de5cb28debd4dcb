"""Writes what is made from the chart and the settings. Run by `./dev k8s`.

The manifests of k8s/, the table of the chart's README, and the names of settings that values.schema.json lets pass.
"""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

from service.settings import Settings, variable_of

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "callboard"
MANIFESTS = ROOT / "k8s"
README = CHART / "README.md"
NAMESPACE = "callboard"
SCHEMA = CHART / "values.schema.json"
#: Settings that other values set.
OF_THE_CHART = frozenset(
    {
        *("REDIS_URL", "DATABASE_URL", "SENTRY_DSN", "CALLBOARD_LOG_FORMAT", "CALLBOARD_RUN_DIR"),
        *("CALLBOARD_GRACE_SECONDS", "CALLBOARD_WORKER_HOST", "CALLBOARD_WORKER_PORT"),
        *("CALLBOARD_API_HOST", "CALLBOARD_API_PORT", "CALLBOARD_API_ACCESS", "CALLBOARD_API_PUBLIC"),
        *("CALLBOARD_SMTP_HOST", "CALLBOARD_SMTP_PORT", "CALLBOARD_SMTP_SECURITY", "CALLBOARD_SMTP_USERNAME"),
        *("CALLBOARD_SMTP_PASSWORD", "CALLBOARD_MAIL_FROM"),
    }
)
NAMES = re.compile(r'(?<="enum": \[\n)( +"CALLBOARD_[A-Z_]+".*?\n)(?= +\])', re.DOTALL)
TABLE = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)
NOT_FOR_KUBECTL = re.compile(r"/(NOTES\.txt|tests/)|helm\.sh/hook:")


def manifests(values: dict[str, Any]) -> str:
    """Return the chart as `kubectl apply` takes it: no hooks, no tests, nothing of Helm's."""
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(values, name="callboard", namespace=NAMESPACE)
    texts = [text for path, text in sorted(rendered.items()) if not NOT_FOR_KUBECTL.search(path + text)]
    documents = [each.strip() for text in texts for each in re.split(r"^---$", text, flags=re.MULTILINE)]
    body = "\n---\n".join(filter(None, documents))
    lines = [line.rstrip() for line in body.replace("managed-by: Helm", "managed-by: kubectl").splitlines()]
    return "\n".join(line for line in lines if line and "helm.sh/chart:" not in line) + "\n"


def table() -> str:
    """Return the rows of all values that a comment with `--` stands above."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    rows = ["| value | default | meaning |", "|---|---|---|"]
    rows += [f"| `{path}` | {_default(node)} | {meaning} |" for path, node, meaning in commented(text)]
    return "\n".join(rows) + "\n"


def commented(text: str) -> Iterator[tuple[str, yaml.Node, str]]:
    """Yield path, value and meaning of each value; '' for one that no comment stands above."""
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    yield from _walk(node, "", text.splitlines())


def _walk(mapping: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[tuple[str, yaml.Node, str]]:
    for key, value in mapping.value:
        path = f"{above}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        if not meaning and isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk(value, f"{path}.", lines)
        else:
            yield path, value, meaning


def _comment(lines: list[str], line: int) -> str:
    found: list[str] = []
    while line > 0 and (text := lines[line - 1].strip()).startswith("#"):
        found.insert(0, text.removeprefix("#").strip())
        line -= 1
    text = " ".join(found)
    return text.removeprefix("-- ") if text.startswith("-- ") else ""


def _default(node: yaml.Node) -> str:
    value = json.dumps(yaml.safe_load(yaml.serialize(node)), ensure_ascii=False)
    return f"`{value}`" if len(value) <= 60 else "see values.yaml"


def schema() -> str:
    """Return the schema of the values, with the names of all settings that are the user's to set."""
    names = sorted({variable_of(name) for name in Settings.model_fields} - OF_THE_CHART)
    lines = textwrap.fill(", ".join(map(json.dumps, names)), 118, initial_indent=" " * 10, subsequent_indent=" " * 10)
    return NAMES.sub(lambda _: f"{lines}\n", SCHEMA.read_text(encoding="utf-8"), count=1)


def main() -> None:
    """Write all of it."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    for values in sorted((MANIFESTS / "values").glob("*.yaml")):
        heading = (
            f"# Rendered from helm/callboard with k8s/values/{values.name} by `./dev k8s`: change those, not this.\n"
        )
        text = manifests(yaml.safe_load(values.read_text(encoding="utf-8")))
        (MANIFESTS / values.name).write_text(heading + text, encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(TABLE.sub(lambda _: table(), readme), encoding="utf-8")


if __name__ == "__main__":
    main()
