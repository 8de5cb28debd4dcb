import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from service.errors import SettingsError
from service.settings import Settings, get_settings, load_settings, mask, unknown_variables, variable_of

WRONG = [
    ("REDIS_URL", "localhost:6379", "must start with redis://"),
    ("REDIS_URL", "http://localhost:6379", "must start with redis://"),
    ("REDIS_URL", "redis://localhost:port/0", "the port must be a number"),
    ("REDIS_URL", "redis://localhost:0/0", "the port must be a number"),
    ("REDIS_URL", "redis://localhost:65536", "the port must be a number"),
    ("REDIS_URL", "redis://localhost:6379/first", "the number of a database"),
    ("DATABASE_URL", "mysql://localhost/callboard", "must start with postgresql://"),
    ("DATABASE_URL", "postgresql://localhost:port/callboard", "the port must be a number"),
    ("DATABASE_URL", "postgresql://one:5432,two:5432/callboard", "the port must be a number"),
    ("REDIS_URL", "redis://", "must name a host"),
    ("REDIS_URL", "redis://:6379/0", "must name a host"),
    ("REDIS_URL", "unix://", "must name the path of a socket"),
    ("REDIS_URL", "redis://localhost?nonsense=1", "unknown option 'nonsense'"),
    ("REDIS_URL", "redis://localhost?db=x", "Invalid value for 'db'"),
    ("REDIS_URL", "redis://localhost?socket_timeout=abc", "the option 'socket_timeout' is the service's own"),
    ("REDIS_URL", "redis://localhost?decode_responses=1", "the option 'decode_responses' is the service's own"),
    ("REDIS_URL", "redis://localhost?max_connections=2", "each thread that uses Redis needs a connection of its own"),
    ("REDIS_URL", "rediss://localhost?ssl_cert_reqs=maybe", "maybe"),
    ("DATABASE_URL", "postgresql://", "must name a host"),
    ("DATABASE_URL", "postgresql:///callboard", "must name a host"),
    ("DATABASE_URL", "postgresql://localhost/callboard?nonsense=1", 'invalid URI query parameter: "nonsense"'),
    ("DATABASE_URL", "postgresql://localhost/callboard?sslmode=maybe", "sslmode=maybe is none of disable"),
    ("CALLBOARD_QUEUE_DEPTH_THRESHOLD", "0", "greater than or equal to 1"),
    ("CALLBOARD_QUEUE_DEPTH_THRESHOLDS", "mails=5", "'mails' is no queue; known queues: email, default"),
    ("CALLBOARD_QUEUE_DEPTH_THRESHOLDS", "email=0", "'email=0' must be QUEUE=NUMBER"),
    ("CALLBOARD_QUEUE_DEPTH_THRESHOLDS", "email", "'email' must be QUEUE=NUMBER"),
    ("CALLBOARD_API_MAX_BODY_BYTES", "12", "greater than or equal to 1024"),
    ("CALLBOARD_NAMESPACE", "{callboard}", "must be 1 to 64 letters"),
    ("CALLBOARD_NAMESPACE", "x" * 65, "must be 1 to 64 letters"),
    ("CALLBOARD_LEASE_SECONDS", "half a minute", "valid number"),
    ("CALLBOARD_LEASE_SECONDS", "0.5", "greater than or equal to 1"),
    ("CALLBOARD_LEASE_SECONDS", "nan", "less than or equal to 86400"),
    ("CALLBOARD_REDIS_TIMEOUT_SECONDS", "0", "greater than or equal to 1.5"),
    ("CALLBOARD_REDIS_TIMEOUT_SECONDS", "1", "greater than or equal to 1.5"),
    ("CALLBOARD_REDIS_TIMEOUT_SECONDS", "inf", "less than or equal to 60"),
    ("CALLBOARD_API_PORT", "eight thousand", "valid integer"),
    ("CALLBOARD_API_PORT", "0", "greater than or equal to 1"),
    ("CALLBOARD_API_PORT", "tcp://10.0.0.1:8000", "enableServiceLinks: false"),
    ("CALLBOARD_WORKER_PORT", "65536", "less than or equal to 65535"),
    ("CALLBOARD_LOG_FORMAT", "xml", "'text' or 'json'"),
    ("CALLBOARD_LOG_LEVEL", "LOUD", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ("CALLBOARD_SMTP_PORT", "-1", "greater than or equal to 1"),
    ("CALLBOARD_SMTP_SECURITY", "ssl", "'none', 'starttls' or 'tls'"),
    ("CALLBOARD_SMTP_TIMEOUT_SECONDS", "601", "less than or equal to 600"),
    ("CALLBOARD_MAIL_FROM", "Ann <ann@example.org>", "must be one bare e-mail address"),
    ("CALLBOARD_MAIL_TEMPLATES", "/no/such/folder", "must be an existing folder"),
]


@pytest.mark.parametrize(("variable", "value", "problem"), WRONG)
def test_a_wrong_value_is_told_with_its_variable_and_an_example(monkeypatch, variable, value, problem):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    message = str(refused.value)
    assert message.startswith(f"{variable}={value!r} is wrong: ")
    assert problem in message
    assert f"; for example: {variable}=" in message


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_is_documented_with_an_example_that_works(monkeypatch, tmp_path, field):
    described = Settings.model_fields[field]
    assert described.description
    is_folder = field in ("mail_templates", "dead_letter_archive")
    example = str(tmp_path) if is_folder else str((described.examples or [""])[0])
    monkeypatch.setenv("CALLBOARD_SMTP_USERNAME", "callboard")
    monkeypatch.setenv("CALLBOARD_SMTP_PASSWORD", "secret")
    monkeypatch.setenv(variable_of(field), example)
    value = getattr(load_settings(), field)
    assert str(value.get_secret_value() if field == "smtp_password" else value) in (example, f"{example}.0")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REDIS_URL", "redis:/:hunter2@host"),
        ("REDIS_URL", "redis//user:hunter2@host"),
        ("REDIS_URL", "user:hunter2@host"),
        ("REDIS_URL", ":hunter2@host\n:6379"),
        ("REDIS_URL", "http://user:hunter2@host"),
        ("REDIS_URL", "http://user:with/a/slash/hunter2@host"),
        ("REDIS_URL", "http://user:with@an@at@hunter2@host"),
        ("REDIS_URL", "http://host?password=hunter2"),
        ("REDIS_URL", "redis://:with/a/slash/hunter2@host:6379/0"),
        ("REDIS_URL", "redis://:hunter2@host:6379/first"),
        ("DATABASE_URL", "host=localhost password=hunter2 user=callboard"),
        ("DATABASE_URL", "postgresql://user:hunter2@host:port/callboard"),
        ("DATABASE_URL", "postgresql+psycopg://user:hunter2@host/callboard"),
        ("DATABASE_URL", "postgresql://user:sec@hunter2@host:5/callboard"),
        ("DATABASE_URL", "postgresql://user:5/sec@hunter2@host:5/callboard"),
        ("DATABASE_URL", "postgresql://user:hunter2@host/callboard?nonsense=1"),
        ("REDIS_URL", "redis://user:sec@hunter2@host:6379/0"),
        ("REDIS_URL", "redis://user:hunter2@host:6379/0?nonsense=1"),
        ("CALLBOARD_SMTP_PASSWORD", "hunter2"),
    ],
)
def test_a_password_is_never_shown(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
    assert variable in str(refused.value)


@pytest.mark.parametrize("variable", ["REDIS_URL", "DATABASE_URL"])
def test_an_at_sign_in_a_password_is_refused_with_the_way_to_write_it(monkeypatch, variable):
    scheme = {"REDIS_URL": "redis", "DATABASE_URL": "postgresql"}[variable]
    monkeypatch.setenv(variable, f"{scheme}://u:sec@ret@host:5/0")
    with pytest.raises(SettingsError, match="written %40"):
        load_settings()
    monkeypatch.setenv(variable, f"{scheme}://u:sec%40ret@host:5/0")
    load_settings()


def test_masking_leaves_what_is_no_secret():
    assert mask("redis://user:pw@redis.example.com:6379/0") == "redis://user:***@redis.example.com:6379/0"
    assert mask("Ann <ann@example.org>", "CALLBOARD_MAIL_FROM") == "Ann <ann@example.org>"
    assert mask("redis.example.com:6379", "REDIS_URL") == "redis.example.com:6379"


def test_a_password_does_not_show_in_the_settings_themselves(monkeypatch):
    monkeypatch.setenv("CALLBOARD_SMTP_USERNAME", "callboard")
    monkeypatch.setenv("CALLBOARD_SMTP_PASSWORD", "hunter2")
    assert "hunter2" not in repr(load_settings())


@pytest.mark.parametrize(
    ("is_set", "is_not"),
    [
        ("CALLBOARD_SMTP_USERNAME", "CALLBOARD_SMTP_PASSWORD"),
        ("CALLBOARD_SMTP_PASSWORD", "CALLBOARD_SMTP_USERNAME"),
    ],
)
def test_a_login_needs_user_and_password(monkeypatch, is_set, is_not):
    monkeypatch.setenv(is_set, "hunter2")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert f"{is_set} is set and {is_not} is not" in str(refused.value)
    assert f"for example: {min(is_set, is_not, key=lambda name: 'PASS' in name)}=" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_all_wrong_values_are_listed_at_once(monkeypatch):
    for variable in ("REDIS_URL", "CALLBOARD_API_PORT", "CALLBOARD_LOG_FORMAT"):
        monkeypatch.setenv(variable, "wrong")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    lines = str(refused.value).splitlines()
    assert sorted(line.partition("=")[0] for line in lines) == [
        "CALLBOARD_API_PORT",
        "CALLBOARD_LOG_FORMAT",
        "REDIS_URL",
    ]


@pytest.mark.parametrize("variable", ["REDIS_URL", "DATABASE_URL", "CALLBOARD_API_PORT", "CALLBOARD_LEASE_SECONDS"])
def test_an_empty_variable_counts_as_unset(monkeypatch, variable):
    defaults = load_settings()
    monkeypatch.setenv(variable, "")
    assert load_settings() == defaults


def test_what_is_needed_and_not_set_is_told_with_an_example():
    settings = load_settings()
    with pytest.raises(SettingsError, match=r"^REDIS_URL is not set; for example: REDIS_URL=redis://"):
        settings.require_redis_url()
    with pytest.raises(SettingsError, match=r"^DATABASE_URL is not set; for example: DATABASE_URL=postgresql://"):
        settings.require_database_url()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REDIS_URL", "rediss://user:p%2Fw@redis.example.com:6380/1"),
        ("REDIS_URL", "redis://[::1]:6379"),
        ("REDIS_URL", "unix:///run/redis.sock?db=1"),
        ("REDIS_URL", "rediss://redis.example.com?ssl_cert_reqs=none&health_check_interval=30"),
        ("DATABASE_URL", "postgres://db.example.com/callboard"),
        ("DATABASE_URL", "postgresql://db.example.com/callboard?sslmode=verify-full&application_name=jobs"),
        ("DATABASE_URL", "postgresql:///callboard?host=/run/postgresql"),
        ("CALLBOARD_LOG_LEVEL", "debug"),
        ("CALLBOARD_LEASE_SECONDS", "1"),
    ],
)
def test_what_is_usual_is_taken(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    load_settings()


def test_a_misspelt_variable_is_found_and_a_known_one_is_not(monkeypatch):
    monkeypatch.setenv("CALLBOARD_LEASE_SECOND", "30")
    monkeypatch.setenv("CALLBOARD_LEASE_SECONDS", "30")
    monkeypatch.setenv("CALLBOARD_URL", "http://127.0.0.1:8000")
    assert unknown_variables() == ["CALLBOARD_LEASE_SECOND"]


def test_settings_are_frozen_and_read_once(monkeypatch):
    settings = get_settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.api_port = 9000  # type: ignore[misc]
    monkeypatch.setenv("CALLBOARD_API_PORT", "9000")
    assert get_settings() is settings
    assert load_settings().api_port == 9000


def test_actor_modules_are_a_list_of_names(monkeypatch):
    assert load_settings().actor_modules == ["actors"]
    monkeypatch.setenv("CALLBOARD_ACTORS", " mycompany.jobs, ,actors,")
    assert load_settings().actor_modules == ["mycompany.jobs", "actors"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REDIS_URL", "redis://localhost?nonsense=1"),
        ("CALLBOARD_ACTORS", "../x"),
        ("CALLBOARD_ACTORS", "actors/email"),
        ("CALLBOARD_WORKER_HOST", "no such host"),
    ],
)
def test_a_worker_with_a_wrong_setting_ends_with_78_and_its_variable_s_name(variable, value):
    variables = {**os.environ, "REDIS_URL": "redis://localhost", variable: value}
    ended = subprocess.run(
        [sys.executable, "-c", "import service.actors"], env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == os.EX_CONFIG
    assert ended.stderr.startswith(f"{variable}={value!r} is wrong: ")
    assert "Traceback" not in ended.stderr
