"""Writes what is made from the chart: the manifests of k8s/ and the table of the chart's README. Run by `./dev k8s`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "callboard"
MANIFESTS = ROOT / "k8s"
README = CHART / "README.md"
NAMESPACE = "callboard"
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


def main() -> None:
    """Write all of it."""
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
