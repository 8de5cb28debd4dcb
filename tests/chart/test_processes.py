"""The containers as they are rendered, run as processes: commands, variables, probes, the hook, and SIGTERM."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.charts import CHART, named, rendered
from tests.servers import RedisServer, eventually, free_port

CALLBOARD = Path(sys.executable).parent / "callboard"
OBJECTS = rendered(CHART / "ci" / "existing-secrets-values.yaml")
FROM_SECRETS = {"CALLBOARD_SMTP_USERNAME": "callboard", "CALLBOARD_SMTP_PASSWORD": "secret"}


class Container:
    """The one container of a Deployment, as a process of this machine."""

    def __init__(self, deployment: str, folder: Path, secrets: dict[str, str]) -> None:
        pod = named(OBJECTS, "Deployment", f"shop-callboard-{deployment}")["spec"]["template"]["spec"]
        (self._container,) = pod["containers"]
        self.port = free_port()
        (source,) = self._container["envFrom"]
        self.variables = dict(named(OBJECTS, "ConfigMap", source["configMapRef"]["name"])["data"])
        for each in self._container["env"]:
            self.variables[each["name"]] = each["value"] if "value" in each else secrets[each["name"]]
        here = {
            "CALLBOARD_WORKER_PORT": self.port,
            "CALLBOARD_API_PORT": self.port,
            "CALLBOARD_RUN_DIR": folder / "run",
        }
        self.variables |= {name: str(value) for name, value in here.items() if name in self.variables}
        self.log = folder / f"{deployment}.log"
        self._folder = folder

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), **self.variables}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [CALLBOARD, *command], cwd=self._folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def start(self) -> subprocess.Popen[bytes]:
        return self.run(self._container["args"])

    def drain(self) -> subprocess.Popen[bytes]:
        program, *command = self._container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == CALLBOARD.name
        return self.run(command)

    def passes(self, probe: str) -> bool:
        path = self._container[probe]["httpGet"]["path"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False
        except OSError:
            return False


@pytest.fixture
def secrets(own_redis: RedisServer, database_url: str) -> dict[str, str]:
    dsn = {"SENTRY_DSN": "http://key@127.0.0.1:9/1"}  # nobody listens there
    return {"REDIS_URL": own_redis.url, "DATABASE_URL": database_url, **dsn, **FROM_SECRETS}


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_every_container_starts_becomes_ready_outlives_an_outage_and_ends(
    tmp_path: Path, secrets: dict[str, str], own_redis: RedisServer, processes: list[subprocess.Popen[bytes]]
) -> None:
    containers = [Container(name, tmp_path, secrets) for name in ("api", "worker-default", "scheduler", "projector")]
    processes += [container.start() for container in containers]
    for container, process in zip(containers, processes, strict=True):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            eventually(lambda probe=probe, it=container, of=process: of.poll() is not None or it.passes(probe), 40)
        assert process.poll() is None, container.log.read_text()
        assert "is no setting" not in container.log.read_text()
    # An outage of Redis takes the API out of its Service, and restarts none.
    api, worker, *_ = containers
    own_redis.freeze()
    eventually(lambda: not api.passes("readinessProbe"))
    assert all(container.passes("livenessProbe") for container in containers)
    own_redis.thaw()
    for container in containers:
        eventually(lambda it=container: it.passes("readinessProbe"), 30)
    assert worker.drain().wait(20) == 0
    assert not worker.passes("readinessProbe")
    assert worker.passes("livenessProbe")
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for container, process in zip(containers, processes, strict=True):
        assert process.wait(20) == 0, container.log.read_text()
