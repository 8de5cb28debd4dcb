"""The values are an interface: each is documented, a wrong one is refused by name, null and zero mean something."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.broker.grace import ABOVE_LIMIT_SECONDS, working_seconds_of
from service.queues import QUEUES
from service.settings import Settings, variable_of
from tests.chart.charts import (
    CHART,
    FEATURES,
    VALUES,
    chart,
    helm_python,
    made,
    named,
    render,
    render_text,
    values_of,
    with_servers,
    worker,
)

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


def maps(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from maps(inner, (*path, key))


MAPS = list(maps(DEFAULTS))


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return values that are good but for one place."""
    values = inner = deepcopy(with_servers())
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return values


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_every_values_file_is_linted(path: Path) -> None:
    report = helm_python.lint(CHART, values_of(path), strict=True)
    assert not report["errors"]
    assert {each["error"] for each in report["messages"]} <= {"icon is recommended"}


def test_each_toggle_has_a_values_file() -> None:
    text = "\n".join(path.read_text() for path in FEATURES)
    assert len(FEATURES) > 8
    for feature in (
        "bundled",
        "existingSecret",
        "url",
        "keda",
        "hpa",
        "serviceMonitor",
        "podMonitor",
        "prometheusRule",
    ):
        assert feature in text
    for feature in ("dashboards", "podDisruptionBudget", "networkPolicy", "serviceAccount", "migrations", "extraEnv"):
        assert feature in text


def test_every_value_is_documented_and_the_table_is_fresh() -> None:
    undocumented = [path for path, _, meaning in made.commented((CHART / "values.yaml").read_text()) if not meaning]
    # The table of pools is explained by the comment above it.
    assert undocumented == []
    assert made.table() in (CHART / "README.md").read_text()


@pytest.mark.parametrize("path", MAPS, ids=".".join)
def test_an_unknown_key_is_refused(path: tuple[str, ...]) -> None:
    if {"nodeSelector", "affinity", "podAnnotations", "podLabels", "labels", "annotations"} & set(path):
        return  # what is in there is the cluster's
    if path[-1:] in [("requests",), ("limits",)]:
        return
    with pytest.raises(helm_python.HelmError, match="unknown"):
        chart().validate_schema(changed((*path, "unknown"), "x"))


@pytest.mark.parametrize("path", MAPS[1:], ids=".".join)
def test_a_map_that_is_null_is_rendered_or_refused_by_name(path: tuple[str, ...]) -> None:
    refused = ""
    try:
        texts = render_text({**with_servers(), **changed(path, None)})
    except helm_python.HelmError as error:
        texts, refused = {}, str(error)
    # Never a template that stumbled over nothing.
    assert not refused or path[-1] in refused or path[0] in refused
    assert "nil pointer" not in refused
    for text in texts.values():
        assert not re.search(r"(: |- )(null|<nil>|<no value>)\s*$", text, re.MULTILINE)


def test_a_null_in_a_pool_removes_the_default() -> None:
    values = with_servers(
        prometheus={"url": "http://prometheus"},
        poolDefaults={"nodeSelector": {"disk": "ssd"}, "autoscaling": {"type": "keda"}},
        pools={"email": {"nodeSelector": None, "resources": None, "autoscaling": None}},
    )
    objects = render(values)
    email, ai = (worker(objects, pool)["spec"]["template"]["spec"] for pool in ("email", "ai"))
    assert "nodeSelector" not in email
    assert "resources" not in email["containers"][0]
    assert ai["nodeSelector"] == {"disk": "ssd"}
    assert worker(objects, "email")["spec"]["replicas"] == 1
    assert "replicas" not in worker(objects, "ai")["spec"]


def test_zero_is_a_value() -> None:
    objects = render(with_servers(poolDefaults={"replicas": 2}, pools={"ai": {"replicas": 0}}, api={"replicas": 0}))
    assert worker(objects, "ai")["spec"]["replicas"] == 0
    assert worker(objects, "email")["spec"]["replicas"] == 2
    assert named(objects, "Deployment", "shop-callboard-api")["spec"]["replicas"] == 0


def test_numbers_stay_whole_and_strings_stay_strings() -> None:
    values = with_servers(
        config={
            "CALLBOARD_HISTORY_DEAD_MOST": 1000000,
            "CALLBOARD_DEAD_LETTER_DAYS": 0.5,
            "CALLBOARD_NAMESPACE": "0123",
        },
        image={"tag": "0123"},
        pools={"email": {"podLabels": {"team": "true"}, "podAnnotations": {"n": "0123"}, "timeLimitSeconds": 1000000}},
    )
    objects = render(values)
    settings = named(objects, "ConfigMap", "shop-callboard")["data"]
    assert settings["CALLBOARD_HISTORY_DEAD_MOST"] == "1000000"
    assert settings["CALLBOARD_DEAD_LETTER_DAYS"] == "0.5"
    assert settings["CALLBOARD_NAMESPACE"] == "0123"
    template = worker(objects, "email")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "true"
    assert template["metadata"]["annotations"]["n"] == "0123"
    assert template["spec"]["terminationGracePeriodSeconds"] == 1000030
    assert template["spec"]["containers"][0]["image"] == "callboard:0123"
    assert not any("e+0" in text for text in render_text(values).values())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "set exactly one of redis.existingSecret"),
        (with_servers(redis={"url": "redis://a", "existingSecret": "b"}), "set exactly one of redis.existingSecret"),
        (with_servers(redis={"url": "http://a"}), "redis"),
        (with_servers(smtp={"username": "a"}), "username and password go together"),
        (with_servers(config={"REDIS_URL": "redis://a"}), "REDIS_URL"),
        (with_servers(config={"CALLBOARD_SMTP_PASSWORD": "a"}), "CALLBOARD_SMTP_PASSWORD"),
        (with_servers(podDisruptionBudget={"maxUnavailable": 0}), "maxUnavailable"),
        (with_servers(pools={"own": {}}), 'pools.own: "own" is no queue'),
        (with_servers(pools={"own": {"queues": []}}), "queues"),
        (with_servers(pools={"Own": {"queues": ["email"]}}), "Own"),
        (with_servers(image={"digest": "latest"}), "digest"),
        (with_servers(image={"tag": 1.0}), "tag"),
        (with_servers(migrations={"mode": "hook"}, database={"bundled": {"enabled": True}}), "not there|is there"),
        (with_servers(metrics={"serviceMonitor": {"enabled": True}}, api={"public": []}), "asks for a key"),
        (
            with_servers(
                metrics={"serviceMonitor": {"enabled": True}}, networkPolicy={"apiFrom": [{"namespaceSelector": {}}]}
            ),
            "shuts Prometheus out",
        ),
        (with_servers(pools={"email": {"autoscaling": {"type": "keda"}}}), "set prometheus.url"),
        (with_servers(pools={"email": {"autoscaling": {"type": "both"}}}), "type"),
        (with_servers(pools={"email": {"autoscaling": {"type": "hpa"}}}), "prometheusRule"),
        (with_servers(pools={"email": {"autoscaling": {"type": "hpa", "minReplicas": 0}}}), "go to zero"),
        (with_servers(pools={"email": {"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}}), "below minReplicas"),
        (with_servers(pools={"email": {"autoscaling": {"cooldownSeconds": 5}}}), "cooldownSeconds"),
    ],
)
def test_what_can_not_be_is_refused_with_a_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm_python.HelmError, match=reason):
        render(values)


def test_the_queues_are_those_of_the_code_and_each_is_in_a_pool() -> None:
    rows = {
        name: {"concurrency": policy.concurrency, "timeLimitSeconds": policy.time_limit_seconds}
        | ({"needsDatabase": True} if policy.needs_database else {})
        for name, policy in QUEUES.items()
    }
    assert DEFAULTS["queues"] == rows
    objects = render(with_servers())
    served = [
        queue
        for name in DEFAULTS["pools"]
        for queue in worker(objects, name)["spec"]["template"]["spec"]["containers"][0]["args"][1:]
        if not queue.startswith("--")
    ]
    assert sorted(served) == sorted(QUEUES)


def test_settings_are_those_of_the_code_and_the_schema_is_fresh() -> None:
    known = {variable_of(name) for name in Settings.model_fields}
    assert set(SCHEMA["properties"]["config"]["propertyNames"]["enum"]) == known - made.OF_THE_CHART
    assert known >= made.OF_THE_CHART
    assert made.schema() == (CHART / "values.schema.json").read_text()


@pytest.mark.parametrize("pool", QUEUES)
def test_the_grace_period_is_above_the_time_limit(pool: str) -> None:
    limit = int(QUEUES[pool].time_limit_seconds)
    spec = worker(render(with_servers()), pool)["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == limit + ABOVE_LIMIT_SECONDS
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert env["CALLBOARD_GRACE_SECONDS"] == str(spec["terminationGracePeriodSeconds"])
    # A job that has just begun when the hook starts has its whole time before SIGTERM interrupts it.
    assert working_seconds_of(spec["terminationGracePeriodSeconds"]) >= limit
    for grace in (limit - 1, limit, limit + 29):
        with pytest.raises(helm_python.HelmError, match=rf"pools.{pool}: terminationGracePeriodSeconds .*{limit}"):
            render(with_servers(pools={pool: {"terminationGracePeriodSeconds": grace}}))
    # Only the limit is raised: the grace period follows.
    raised = render(with_servers(pools={pool: {"timeLimitSeconds": 3 * limit}}))
    assert worker(raised, pool)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 3 * limit + 30


def test_a_pool_of_several_queues_has_the_longest_limit_and_the_threads_of_all() -> None:
    objects = render(with_servers(pools={"own": {"queues": ["email", "reports", "task-outcomes"]}}))
    spec = worker(objects, "own")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 3630
    assert "--threads=59" in spec["containers"][0]["args"]
    assert "DATABASE_URL" in {each["name"] for each in spec["containers"][0]["env"]}


def test_notes_warn_of_what_is_not_for_production_and_of_queues_that_nobody_serves() -> None:
    def notes(**values: Any) -> str:
        return render_text(values)["callboard/templates/NOTES.txt"]

    bundled = {"bundled": {"enabled": True}}
    assert "Redis and PostgreSQL are for trial only" in notes(redis=bundled, database=bundled)
    assert "WARNING" not in notes(**with_servers())
    assert "no pool of this release serves: ai, email." in notes(
        **with_servers(pools={"ai": None, "email": {"replicas": 0}})
    )


def test_the_chart_is_of_the_projects_version() -> None:
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{chart().metadata["appVersion"]}"' in project
