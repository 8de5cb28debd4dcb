"""The autoscalers ask for metrics that exist, and count what runs: a pool that works is never taken to zero."""

import re
from collections.abc import Callable
from threading import Event
from typing import Any

import dramatiq
import pytest

from service.api.metrics import queue_families
from service.broker import RedisBroker
from service.broker.depths import depths
from service.job import Job
from tests.chart.charts import CHART, Object, named, of_kind, render, with_servers, worker
from tests.servers import eventually

KEDA = {"prometheus": {"url": "http://prometheus"}, "poolDefaults": {"autoscaling": {"type": "keda"}}}
HPA = {
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "poolDefaults": {"autoscaling": {"type": "hpa"}},
}
NAMES = re.compile(r"callboard_\w+")


def queries(objects: list[Object]) -> list[str]:
    found = [
        trigger["metadata"]["query"]
        for each in of_kind(objects, "ScaledObject")
        for trigger in each["spec"]["triggers"]
    ]
    groups = [group for each in of_kind(objects, "PrometheusRule") for group in each["spec"]["groups"]]
    return found + [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(("values", "kind"), [(KEDA, "ScaledObject"), (HPA, "HorizontalPodAutoscaler"), ({}, None)])
def test_either_an_autoscaler_or_the_chart_says_how_many(values: Any, kind: str | None) -> None:
    objects = render(with_servers(**values))
    scalers = of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
    assert {each["kind"] for each in scalers} == ({kind} if kind else set())
    targets = [each["spec"]["scaleTargetRef"]["name"] for each in scalers]
    assert len(targets) == len(set(targets))
    for each in of_kind(objects, "Deployment"):
        assert ("replicas" in each["spec"]) == (each["metadata"]["name"] not in targets)


@pytest.mark.parametrize("values", [KEDA, HPA])
def test_every_metric_that_is_asked_for_exists(values: Any, broker: RedisBroker) -> None:
    exist = {family.name for family in queue_families(depths(broker))}
    asked = {name for query in queries(render(with_servers(**values))) for name in NAMES.findall(query)}
    assert {"callboard_queue_depth", "callboard_queue_running", "callboard_queue_oldest_age_seconds"} <= asked <= exist


def test_alerts_ask_for_metrics_that_exist(broker: RedisBroker) -> None:
    exist = {family.name for family in queue_families(depths(broker))}
    for path in (CHART / "files" / "alerts").glob("*.yaml"):
        assert set(re.findall(r"callboard_\w+", path.read_text())) <= exist


def test_a_query_is_of_this_release_and_of_the_queues_of_its_pool() -> None:
    values = {**KEDA, "pools": {"own": {"queues": ["email", "high-priority"], "autoscaling": {"targetAgeSeconds": 30}}}}
    objects = render(with_servers(**values))
    spec = named(objects, "ScaledObject", "shop-callboard-worker-own")["spec"]
    (trigger,) = spec["triggers"]
    of = '{namespace="jobs",service="shop-callboard-api",queue=~"email|high-priority"}'
    assert trigger["metadata"]["query"] == (
        f"sum(max by (queue) (callboard_queue_depth{of}) + max by (queue) (callboard_queue_running{of}))"
        f" * clamp(max(callboard_queue_oldest_age_seconds{of}) / 30, 1, 4)"
    )
    # As many jobs as a pod runs at once, where nothing else is said.
    assert trigger["metadata"]["threshold"] == "52"
    assert "--threads=52" in worker(objects, "own")["spec"]["template"]["spec"]["containers"][0]["args"]
    # No answer is not zero.
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metricType"] == "AverageValue"


def test_what_waits_and_runs_is_counted_from_the_send_to_the_end(
    broker: RedisBroker, start_worker: Callable[..., Any]
) -> None:
    """The one job of a pool that could go to zero: there is no moment in which it is not counted."""
    began, go_on = Event(), Event()

    @dramatiq.actor(broker=broker, queue_name="ai", actor_name="scale.long", actor_class=Job)
    def long() -> None:
        began.set()
        go_on.wait(20)

    def demand() -> float:
        of = {
            (family.name, sample.labels["queue"]): sample.value
            for family in queue_families(depths(broker))
            for sample in family.samples
            if "queue" in sample.labels
        }
        return of["callboard_queue_depth", "ai"] + of["callboard_queue_running", "ai"]

    assert demand() == 0
    long.send()
    seen = [demand()]
    start_worker(threads=1)
    while not began.is_set():
        seen.append(demand())
    seen += [demand() for _ in range(20)]
    go_on.set()
    assert set(seen) == {1}
    eventually(lambda: demand() == 0)
