"""Rendering the chart as Helm does, without a cluster."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

helm_python = pytest.importorskip("helm_python", reason="Helm has no wheel for this platform")
#: What writes k8s/ and the chart's table. It needs Helm too.
made = import_module("helm.render")


ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "callboard"
#: A values file for each feature.
FEATURES = sorted((CHART / "ci").glob("*.yaml"))
#: All values files that the project has: those that k8s/ is made of, and one as it was written for the first release.
VALUES = [*FEATURES, *sorted((ROOT / "k8s" / "values").glob("*.yaml")), Path(__file__).parent / "values-of-0.1.yaml"]
SERVERS = {"redis": {"existingSecret": "redis"}, "database": {"existingSecret": "database"}}

Object = dict[str, Any]


@cache
def chart() -> Any:
    return helm_python.Chart.load(CHART)


def values_of(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


def render_text(values: dict[str, Any], name: str = "shop", **options: Any) -> dict[str, str]:
    return chart().render(values, name=name, namespace="jobs", **options)


def render(values: dict[str, Any], name: str = "shop", **options: Any) -> list[Object]:
    """Return all objects. Raises HelmValuesError, HelmRenderError."""
    texts = render_text(values, name, **options)
    return [
        each
        for path, text in texts.items()
        if not path.endswith("NOTES.txt")
        for each in yaml.safe_load_all(text)
        if each is not None
    ]


@cache
def rendered(path: Path) -> list[Object]:
    """The objects of a values file, to be read only."""
    return render(values_of(path))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pods(objects: list[Object]) -> list[tuple[str, Object]]:
    """Return the name and the spec of every pod that the objects lead to."""
    found = [(each["metadata"]["name"], each["spec"]) for each in of_kind(objects, "Pod")]
    owners = of_kind(objects, "Deployment", "StatefulSet", "Job")
    return found + [(each["metadata"]["name"], each["spec"]["template"]["spec"]) for each in owners]


def worker(objects: list[Object], pool: str) -> Object:
    """Return the Deployment of a pool of the release `shop`."""
    return named(objects, "Deployment", f"shop-callboard-worker-{pool}")


def with_servers(**values: Any) -> dict[str, Any]:
    return {**SERVERS, **values}
