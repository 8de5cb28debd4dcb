"""The passwords that the chart makes for its bundled servers: made once, then read back from the cluster."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.chart.charts import CHART, helm_python, named, render, render_text

BUNDLED: dict[str, Any] = {"redis": {"bundled": {"enabled": True}}, "database": {"bundled": {"enabled": True}}}
SECRET = "shop-callboard-bundled"
#: Rendering ends with what the Secret would hold: a whole install would need a whole cluster.
SHOW = '{{ fail (include (print $.Template.BasePath "/bundled/secret.yaml") .) }}'


@contextmanager
def cluster(secret: dict[str, str] | None) -> Iterator[str]:
    """Answer as the API server of a cluster that has this Secret, and yield a kubeconfig for it."""
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [{"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}],
        },
    }
    if secret is not None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
        about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}
        answers[f"/api/v1/namespaces/jobs/secrets/{SECRET}"] = about

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(answer or missing).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    one = {"name": "test"}
    yield json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{**one, "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{**one, "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{**one, "user": {}}],
        }
    )
    server.shutdown()
    server.server_close()


def secret_of(tmp_path: Path, kubeconfig: str, values: dict[str, Any]) -> str:
    """Return the Secret as it is rendered against that cluster."""
    copy = tmp_path / "callboard"
    shutil.copytree(CHART, copy, dirs_exist_ok=True)
    (copy / "templates" / "show.yaml").write_text(SHOW)
    with (
        helm_python.Config(kubeconfig_content=kubeconfig, namespace="jobs", storage_driver="memory") as config,
        pytest.raises(helm_python.HelmError) as shown,
    ):
        config.install(copy, "shop", values, dry_run="server")
    return str(shown.value)


def test_a_password_that_the_cluster_has_is_kept(tmp_path: Path) -> None:
    with cluster({"redis-password": "first", "postgresql-password": "second"}) as kubeconfig:
        text = secret_of(tmp_path, kubeconfig, BUNDLED)
        assert 'redis-password: "first"' in text
        assert 'postgresql-password: "second"' in text
        chosen = {**BUNDLED, "redis": {"bundled": {"enabled": True, "password": "chosen"}}}
        assert 'redis-password: "chosen"' in secret_of(tmp_path, kubeconfig, chosen)


def test_a_first_install_makes_one(tmp_path: Path) -> None:
    with cluster(None) as kubeconfig:
        one, other = (secret_of(tmp_path, kubeconfig, BUNDLED) for _ in range(2))
    assert 'redis-password: "' in one
    assert one != other


def test_one_that_was_made_outlives_an_uninstall_as_the_volume_does() -> None:
    made = named(render(BUNDLED), "Secret", SECRET)["metadata"]
    assert made["annotations"] == {"helm.sh/resource-policy": "keep"}
    chosen = {"bundled": {"enabled": True, "password": "chosen"}}
    given = named(render({"redis": chosen, "database": chosen}), "Secret", SECRET)["metadata"]
    assert "annotations" not in given, "who has chosen it knows it"


def test_an_upgrade_never_makes_another_one() -> None:
    with pytest.raises(helm_python.HelmError, match=r"redis-password.* is not in the cluster: set it in the values"):
        render(BUNDLED, is_install=False, is_upgrade=True)


def test_with_passwords_in_the_values_two_renders_are_equal() -> None:
    server = {"bundled": {"enabled": True, "password": "chosen"}}
    values = {"redis": server, "database": server}
    assert render_text(values) == render_text(values)
