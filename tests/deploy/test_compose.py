"""compose.yaml says what the settings and the table of queues say. With no engine, it is read and parts are run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import yaml
from compose_spec import PyCompose

from service.broker.grace import grace_seconds_of
from service.broker.server_check import problems_of
from service.cli import _parser  # pyright: ignore[reportPrivateUsage]
from service.observe.probe import Answers, Probe
from service.queues import QUEUES
from service.settings import Settings, load_settings, variable_of
from tests.servers import eventually, free_port, redis_flavours

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose.yaml").read_text()
EXAMPLE = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))


def interpolated() -> str:
    """The file as Compose reads it beside a `.env` that is the example."""

    def value(found: "re.Match[str]") -> str:
        name, default = found[1], found[3] if found[2] == ":-" else None
        return EXAMPLE[name] if default is None else EXAMPLE.get(name, default)

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, TEXT)


FILE: dict[str, Any] = yaml.safe_load(interpolated())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("callboard:")}
WORKERS = {name: service for name, service in OWN.items() if service["command"][0] == "worker"}
LONG_RUNNING = {name: service for name, service in SERVICES.items() if name != "migrate"}


def seconds(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_it_is_a_compose_file() -> None:
    PyCompose.from_yaml(yaml.safe_dump(FILE)).validate()
    misspelt = yaml.safe_dump({"services": {"x": {"image": "x", "stop_grace_perod": "1s"}}})
    with pytest.raises(Exception, match="stop_grace_perod"):
        PyCompose.from_yaml(misspelt)


def test_every_queue_has_a_worker_and_its_jobs_have_their_time() -> None:
    assert {service["command"][1]: name for name, service in WORKERS.items()} == {q: f"worker-{q}" for q in QUEUES}
    for service in WORKERS.values():
        (queue,) = service["command"][1:]
        assert seconds(service["stop_grace_period"]) == QUEUES[queue].time_limit_seconds + 30
        assert seconds(service["stop_grace_period"]) == grace_seconds_of([queue], None), "as the worker itself reckons"
        assert seconds(service["healthcheck"]["interval"]) == 30
    assert WORKERS["worker-email"]["stop_grace_period"] == "330s"


@pytest.mark.parametrize("name", OWN)
def test_its_commands_and_settings_are_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = OWN[name]
    _parser().parse_args(service["command"])
    given = {variable: value for variable, value in service["environment"].items() if value is not None}
    passed_on = set(service["environment"]) - set(given)
    assert {*given, *passed_on} <= {variable_of(field) for field in Settings.model_fields}
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert settings.redis_url == "redis://:development-only-redis@redis:6379/0"
    assert set(settings.served_queues) == set(QUEUES)
    assert set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)) <= passed_on


def test_all_of_it_is_there() -> None:
    assert {service["command"][0] for service in OWN.values()} == {"api", "worker", "scheduler", "projector", "migrate"}
    assert set(SERVICES) - set(OWN) == {"redis", "postgres", "prometheus", "grafana"}
    for service in SERVICES.values():
        assert re.search(r":v?\d", service["image"]), "a version, and not whatever is the latest"


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_may_do_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert any(mount.startswith("/tmp") for mount in service["tmpfs"])
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "this machine only"


def test_each_is_watched_and_started_after_what_it_needs() -> None:
    for service in LONG_RUNNING.values():
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert service["restart"] == "unless-stopped"
    for name, service in OWN.items():
        needs = {other: how["condition"] for other, how in service["depends_on"].items()}
        if name == "migrate":
            assert needs == {"postgres": "service_healthy"}
            assert service["restart"] == "no"
        else:
            assert needs == {
                "redis": "service_healthy",
                "postgres": "service_healthy",
                "migrate": "service_completed_successfully",
            }


def test_passwords_are_none_or_clearly_of_development() -> None:
    assert set(EXAMPLE) == {"REDIS_PASSWORD", "POSTGRES_PASSWORD", "GRAFANA_PASSWORD"}
    assert all(value.startswith("development-only-") for value in EXAMPLE.values())
    for name in EXAMPLE:
        assert f"${{{name}:?" in TEXT
        assert f"${{{name}:-" not in TEXT, "no default"
    assert EXAMPLE.keys() >= set(re.findall(r"\$\{(\w+):\?", TEXT))
    assert "development-only" not in TEXT
    ignored = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=ROOT)
    assert ignored.returncode == 0


def test_prometheus_asks_all_that_have_metrics() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for static in job["static_configs"] for target in static["targets"]}
    assert targets == {"api:8000", "projector:9191", *(f"{name}:9191" for name in WORKERS)}
    assert OWN["api"]["environment"]["CALLBOARD_API_PUBLIC"] == "metrics"


def test_what_is_mounted_is_here_and_provisioned() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("./"):
                assert (ROOT / source).exists()
                assert volume.endswith(":ro")
            else:
                assert source in FILE["volumes"], target
    provider = yaml.safe_load((ROOT / "deploy/compose/grafana/dashboards/callboard.yml").read_text())["providers"][0]
    mounts = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts
    source = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("name", ["worker-email", "api"])
def test_a_health_check_tells_ready_from_not(name: str) -> None:
    _, python, option, code = SERVICES[name]["healthcheck"]["test"]
    assert (python, option) == ("python", "-c")
    default = str(Settings.model_fields["api_port" if name == "api" else "worker_port"].default)
    assert f":{default}/readyz" in code
    ready = True
    probe = Probe("127.0.0.1", free_port(), Answers(lambda: ready))
    probe.start()
    try:
        command = [sys.executable, "-c", code.replace(default, str(probe.port))]
        assert subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        ready = False
        assert subprocess.run(command, capture_output=True, timeout=20).returncode == 1
    finally:
        probe.stop()


def test_redis_starts_with_these_options_and_a_worker_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    program = next(iter(redis_flavours().values()))
    port = free_port()
    options = SERVICES["redis"]["command"][1:]
    process = subprocess.Popen([program, *options, "--port", str(port), "--dir", tmp_path], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port, password=EXAMPLE["REDIS_PASSWORD"])

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    try:
        eventually(answers)
        assert problems_of(cast("Any", client), "callboard") == []
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
    finally:
        client.close()
        process.kill()
        process.wait()
    assert SERVICES["redis"]["ports"] == ["127.0.0.1:6380:6379"]
