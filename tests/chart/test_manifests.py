"""What is rendered, held against the schemas of Kubernetes and its operators, and against itself."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate.utils
import pytest
import yaml

from service.cli import _parser, api
from tests.chart.charts import (
    CHART,
    ROOT,
    VALUES,
    Object,
    made,
    named,
    of_kind,
    pods,
    render,
    rendered,
    values_of,
    with_servers,
)

#: The oldest that Chart.yaml allows, and the two newest that the package knows.
KUBERNETES = ("1.31", "1.36", "1.37")
SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Any:
    read = kubernetes_validate.utils.schema_contents
    kubernetes_validate.utils.schema_contents = functools.cache(read)
    yield
    kubernetes_validate.utils.schema_contents = read


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_every_object_fits_its_schema(path: Path) -> None:
    for each in rendered(path):
        check(each)


def check(each: Object) -> None:
    if each["kind"] in CUSTOM:
        jsonschema.validate(each, CUSTOM[each["kind"]])
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize(
    ("kind", "key"), [("Deployment", "replica"), ("ScaledObject", "trigger"), ("ServiceMonitor", "endpoint")]
)
def test_the_schemas_refuse_what_is_misspelt(kind: str, key: str) -> None:
    each = dict(of_kind(rendered(CHART / "ci" / "keda-values.yaml"), kind)[0])
    each["spec"] = {**each["spec"], key: 1}
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError), match=key):
        check(each)


@pytest.mark.parametrize("path", sorted((ROOT / "k8s").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_plain_manifests_are_fresh(path: Path) -> None:
    heading, _, body = path.read_text().partition("\n")
    assert heading.startswith("# Rendered from")
    assert body == made.manifests(values_of(ROOT / "k8s" / "values" / path.name))
    kinds = {each["kind"] for each in yaml.safe_load_all(body)}
    assert "Pod" not in kinds
    assert "Job" not in kinds  # a hook, which kubectl does not know
    assert ("ScaledObject" in kinds) == (path.stem == "production")


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_every_pod_keeps_to_restricted_pod_security(path: Path) -> None:
    specs = pods(rendered(path))
    assert specs
    for _name, spec in specs:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"] + spec.get("initContainers", []):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {mount["name"] for c in spec["containers"] for mount in c["volumeMounts"]} <= volumes_of(spec)


def volumes_of(spec: Object) -> set[str]:
    return {volume["name"] for volume in spec["volumes"]} | {"data"}


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_no_secret_is_anywhere_but_in_secrets(path: Path) -> None:
    for each in rendered(path):
        if each["kind"] != "Secret":
            text = json.dumps(each)
            assert "password@" not in text
            assert "key@" not in text
            assert '"trial"' not in text


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_what_is_named_is_there(path: Path) -> None:
    """Secrets that the values do not name, config maps, accounts, ports and selectors are of the same render."""
    objects = rendered(path)
    values = json.dumps(values_of(path))
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for _name, spec in pods(objects):
        account = spec.get("serviceAccountName", "default")
        assert account == "default" or ("ServiceAccount", account) in there
        for container in spec["containers"] + spec.get("initContainers", []):
            for source in container.get("envFrom", []):
                assert ("ConfigMap", source["configMapRef"]["name"]) in there
            names = [each["name"] for each in container.get("env", [])]
            assert len(names) == len(set(names))
            for variable in container.get("env", []):
                if "valueFrom" not in variable:
                    continue
                ref = variable["valueFrom"]["secretKeyRef"]
                if f'"{ref["name"]}"' not in values:
                    assert ref["key"] in named(objects, "Secret", ref["name"])["stringData"]
            ports = {each["name"] for each in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "httpGet" in container.get(probe, {}):
                    assert container[probe]["httpGet"]["port"] in ports
    for each in of_kind(objects, "Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for each in of_kind(objects, "Service", "PodDisruptionBudget"):
        selector = each["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        owners = of_kind(objects, "Deployment", "StatefulSet")
        assert sum(selector.items() <= o["spec"]["template"]["metadata"]["labels"].items() for o in owners) == 1
    for each in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler"):
        target = named(objects, "Deployment", each["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"]


@pytest.mark.parametrize("feature", ["bundled", "urls", "keda", "hpa"])
def test_two_releases_in_one_namespace_do_not_clash(feature: str) -> None:
    values = values_of(CHART / "ci" / f"{feature}-values.yaml")
    long = "a-release-whose-name-is-as-long-as-helm-lets-it-be-53"
    seen: dict[tuple[str, str], str] = {}
    for name in ("shop", "shop2", f"{long[:-1]}4", long):
        objects = render(values, name)
        for each in objects:
            key = each["kind"], each["metadata"]["name"]
            assert seen.setdefault(key, name) == name
            # As a label, the longest that is made of a name.
            assert len(each["metadata"]["name"]) <= 63
            assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == name
            assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_every_command_is_one_of_the_image(path: Path) -> None:
    objects = rendered(path)
    for name, spec in pods(objects):
        for container in spec["containers"] + spec.get("initContainers", []):
            if "command" in container:
                assert container["command"][0] == "python"  # of the chart's test
            elif name.split("-")[-1] not in ("redis", "postgresql"):
                _parser().parse_args(container["args"])
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {"command": []})["command"]
            assert hook == (["callboard", "drain"] if "worker" in name else [])
            if hook:
                _parser().parse_args(hook[1:])


def test_workers_have_probes_that_ask_no_server() -> None:
    for each in of_kind(render(with_servers()), "Deployment"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"] in ("/livez", "/healthz")
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_requests_under_way_end_within_the_grace_period_of_the_api() -> None:
    spec = named(render(with_servers()), "Deployment", "shop-callboard-api")["spec"]["template"]["spec"]
    hook = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert hook + api.GRACE_SECONDS + 10 <= spec["terminationGracePeriodSeconds"]


def test_what_kubernetes_lets_nobody_change_is_as_it_was() -> None:
    """An upgrade that changes one of these fails, and helm leaves it half done."""
    objects = render(values_of(CHART / "ci" / "bundled-values.yaml"))
    release = {"app.kubernetes.io/name": "callboard", "app.kubernetes.io/instance": "shop"}
    found = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Deployment", "StatefulSet")}
    for name in ("api", "scheduler", "projector", "redis", "postgresql"):
        selector = found[f"shop-callboard-{name}"]["selector"]["matchLabels"]
        assert selector == release | {"app.kubernetes.io/component": name}
    selector = found["shop-callboard-worker-email"]["selector"]["matchLabels"]
    assert selector == release | {"app.kubernetes.io/component": "worker", "callboard/pool": "email"}
    for name, path in (("redis", "/data"), ("postgresql", "/var/lib/postgresql/data")):
        server = found[f"shop-callboard-{name}"]
        assert server["serviceName"] == f"shop-callboard-{name}"
        assert [each["metadata"]["name"] for each in server["volumeClaimTemplates"]] == ["data"]
        mounts = server["template"]["spec"]["containers"][0]["volumeMounts"]
        assert {"name": "data", "mountPath": path} in mounts


def test_a_changed_setting_rolls_the_pods_and_an_equal_one_does_not() -> None:
    def checksums(**values: Any) -> Object:
        deployment = named(render(with_servers(**values)), "Deployment", "shop-callboard-api")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    plain = checksums()
    assert checksums() == plain
    assert checksums(config={"CALLBOARD_LOG_LEVEL": "DEBUG"}) != plain
    assert checksums(sentry={"dsn": "https://key@sentry.example.com/1"}) != plain
    assert checksums(api={"replicas": 7}) == plain


def test_migrations_gate_what_comes_after() -> None:
    job = named(render(with_servers()), "Job", "shop-callboard-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    # What the hook needs is of the cluster's, or a hook that comes before it.
    objects = render(with_servers(database={"url": "postgresql://u:p@h/d"}))
    secret = named(objects, "Secret", "shop-callboard-migrate")
    assert int(secret["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    pod = named(objects, "Job", "shop-callboard-migrate")["spec"]["template"]["spec"]
    (variable,) = [each for each in pod["containers"][0]["env"] if each["name"] == "DATABASE_URL"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert pod["serviceAccountName"] == "default"
    assert "envFrom" not in pod["containers"][0]
    # The bundled PostgreSQL is not there before the install: who needs the tables makes them.
    bundled = render({"redis": {"bundled": {"enabled": True}}, "database": {"bundled": {"enabled": True}}})
    assert not of_kind(bundled, "Job")
    for name in ("api", "projector"):
        spec = named(bundled, "Deployment", f"shop-callboard-{name}")["spec"]["template"]["spec"]
        assert spec["initContainers"][0]["args"][0] == "migrate"


def test_network_policies_deny_first_and_select_pods_of_this_release_only() -> None:
    objects = render(values_of(CHART / "ci" / "bundled-values.yaml"))
    policies = of_kind(objects, "NetworkPolicy")
    release = {"app.kubernetes.io/name": "callboard", "app.kubernetes.io/instance": "shop"}
    for each in policies:
        assert release.items() <= each["spec"]["podSelector"]["matchLabels"].items()
    deny = named(objects, "NetworkPolicy", "shop-callboard-deny")["spec"]
    assert deny == {"podSelector": {"matchLabels": release}, "policyTypes": ["Ingress", "Egress"]}
    assert {name.rsplit("-", 1)[1] for name in (each["metadata"]["name"] for each in policies)} == {
        *("deny", "servers", "api", "metrics", "outside", "redis", "postgresql", "test")
    }


def test_whoever_looks_up_names_reaches_dns_also_where_its_pods_have_another_port() -> None:
    objects = render(values_of(CHART / "ci" / "bundled-values.yaml"))
    dns = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
    for name in ("servers", "test"):
        assert {"ports": dns} in named(objects, "NetworkPolicy", f"shop-callboard-{name}")["spec"]["egress"]


def test_whoever_reads_metrics_reaches_the_api_where_it_is_narrowed() -> None:
    path = CHART / "ci" / "monitoring-values.yaml"
    (rule,) = named(rendered(path), "NetworkPolicy", "shop-callboard-api")["spec"]["ingress"]
    policy = values_of(path)["networkPolicy"]
    for each in (*policy["apiFrom"], *policy["metricsFrom"]):
        assert each in rule["from"]
    (rule,) = named(rendered(path), "NetworkPolicy", "shop-callboard-metrics")["spec"]["ingress"]
    assert rule["from"] == policy["metricsFrom"]
