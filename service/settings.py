"""Every setting of the service: typed, documented, read once from the environment.

`CALLBOARD_*`, and the usual `REDIS_URL`, `DATABASE_URL` and `SENTRY_DSN`. A wrong value stops the process with a
SettingsError that names the variable, the value (secrets masked) and an example. What only some processes need
(`REDIS_URL`, `DATABASE_URL`) may be absent until `require_*` asks for it, so that importing an actor needs no
environment.
"""

import os
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError
from service.queues import QUEUES
from service.urls import check_database_url, check_redis_url, mask_url

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_PAYLOAD_BYTES = 256 * 1024
PUBLIC_PAGES = frozenset({"docs", "metrics", "workers-health"})
DATABASE_PACKAGES = ("sqlalchemy", "psycopg")
SMTP_EXAMPLE = "smtp.example.com"


def _setting(default: Any, variable: str, description: str, example: str, **bounds: Any) -> Any:
    return Field(default, validation_alias=variable, description=description, examples=[example], **bounds)


class Settings(BaseSettings):
    """One instance for a process: `get_settings()`. Fields are frozen; their order is the order of the docs."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=False)

    redis_url: str | None = _setting(
        None,
        "REDIS_URL",
        "The Redis or Valkey server: `redis://`, `rediss://` (TLS) or `unix://`.",
        "redis://:password@redis.example.com:6379/0",
    )
    database_url: str | None = _setting(
        None,
        "DATABASE_URL",
        "The PostgreSQL database of job history. API, projector, migrations and workers of `task-outcomes` need it.",
        "postgresql://user:password@db.example.com:5432/callboard",
    )
    sentry_dsn: str | None = _setting(
        None,
        "SENTRY_DSN",
        "Where Sentry takes what it is told: schedules check in there as cron monitors. Not set, nothing is told.",
        "https://key@sentry.example.com/1",
    )
    namespace: str = _setting(
        "callboard",
        "CALLBOARD_NAMESPACE",
        "The first part of every Redis key, so that several installations can share a server.",
        "callboard-staging",
    )
    actors: str = _setting(
        "actors",
        "CALLBOARD_ACTORS",
        "The modules with actors, comma-separated. Of a package, every module inside is imported.",
        "mycompany.jobs,actors",
    )
    schedules: str = _setting(
        "service.schedules.table:SCHEDULES",
        "CALLBOARD_SCHEDULES",
        "Where the scheduler finds its table of schedules: `module:attribute`.",
        "mycompany.schedules:SCHEDULES",
    )
    lease_seconds: float | None = _setting(
        None,
        "CALLBOARD_LEASE_SECONDS",
        "The lease of every queue, in place of the one in the table of queues.",
        "30",
        ge=1,
        le=86400,
    )
    unknown_actor_seconds: float = _setting(
        300.0,
        "CALLBOARD_UNKNOWN_ACTOR_SECONDS",
        "How long a job of an actor that a worker does not know is left to others before it is a dead letter.",
        "300",
        ge=0,
        le=86400,
    )
    max_message_bytes: int = _setting(
        MAX_MESSAGE_BYTES,
        "CALLBOARD_MAX_MESSAGE_BYTES",
        "The longest message. A longer one is refused when it is sent; one that is found in Redis is a dead letter.",
        "8388608",
        ge=64 * 1024,
        le=64 * 1024 * 1024,
    )
    max_payload_bytes: int = _setting(
        MAX_PAYLOAD_BYTES,
        "CALLBOARD_MAX_PAYLOAD_BYTES",
        "The largest payload that is sent, as JSON. What is larger is stored elsewhere, and its name sent.",
        "262144",
        ge=1024,
        le=64 * 1024 * 1024,
    )
    dead_letter_days: float = _setting(
        30.0,
        "CALLBOARD_DEAD_LETTER_DAYS",
        "How long a dead letter is kept. The projector removes older ones.",
        "90",
        gt=0,
        le=36_500,
    )
    dead_letters_most: int = _setting(
        100_000,
        "CALLBOARD_DEAD_LETTERS_MOST",
        "How many dead letters of each queue are kept. Of more, the projector removes the oldest.",
        "100000",
        ge=1,
    )
    dead_letter_archive: Path | None = _setting(
        None,
        "CALLBOARD_DEAD_LETTER_ARCHIVE",
        "A folder: what age or count removes is first appended to a file of the day there, one JSON object a line.",
        "/var/lib/callboard/dead-letters",
    )
    audit_days: float | None = _setting(
        None,
        "CALLBOARD_AUDIT_DAYS",
        "How long a line of the audit log is kept. The projector removes older ones. Left out, none is removed.",
        "730",
        ge=1,
        le=36_500,
    )
    history_succeeded_days: float = _setting(
        7.0,
        "CALLBOARD_HISTORY_SUCCEEDED_DAYS",
        "How long the database keeps a job that has succeeded, after its end.",
        "7",
        gt=0,
        le=36_500,
    )
    history_succeeded_most: int = _setting(
        5_000_000,
        "CALLBOARD_HISTORY_SUCCEEDED_MOST",
        "How many jobs that have succeeded the database keeps. Of more, the oldest go.",
        "5000000",
        ge=1,
        le=1_000_000_000,
    )
    history_dead_days: float = _setting(
        90.0,
        "CALLBOARD_HISTORY_DEAD_DAYS",
        "How long the database keeps a job that is dead, after its end.",
        "90",
        gt=0,
        le=36_500,
    )
    history_dead_most: int = _setting(
        1_000_000,
        "CALLBOARD_HISTORY_DEAD_MOST",
        "How many jobs that are dead the database keeps. Of more, the oldest go.",
        "1000000",
        ge=1,
        le=1_000_000_000,
    )
    history_cancelled_days: float = _setting(
        30.0,
        "CALLBOARD_HISTORY_CANCELLED_DAYS",
        "How long the database keeps a job that was cancelled, after its end.",
        "30",
        gt=0,
        le=36_500,
    )
    history_cancelled_most: int = _setting(
        1_000_000,
        "CALLBOARD_HISTORY_CANCELLED_MOST",
        "How many jobs that were cancelled the database keeps. Of more, the oldest go.",
        "1000000",
        ge=1,
        le=1_000_000_000,
    )
    unstored_mb: int = _setting(
        256,
        "CALLBOARD_UNSTORED_MB",
        "Redis memory of each queue for what PostgreSQL has not stored yet; beyond it, sends are refused as full.",
        "256",
        ge=1,
        le=1_000_000,
    )
    transitions_logged: int = _setting(
        500,
        "CALLBOARD_TRANSITIONS_LOGGED",
        "How many transitions of a batch the projector logs singly; of more it logs a sum. 0 logs none.",
        "500",
        ge=0,
        le=100_000,
    )
    redis_check: Literal["warn", "refuse"] = _setting(
        "warn",
        "CALLBOARD_REDIS_CHECK",
        "What a worker does at its start on a server that evicts keys, keeps nothing on disk or is too old.",
        "refuse",
    )
    redis_timeout_seconds: float = _setting(
        5.0,
        "CALLBOARD_REDIS_TIMEOUT_SECONDS",
        "How long to wait for a connection to Redis, and for a reply. `send()` fails within it.",
        "5",
        # A worker's blocking reads wait for one second.
        ge=1.5,
        le=60,
    )
    api_host: str = _setting("127.0.0.1", "CALLBOARD_API_HOST", "The address that the API listens on.", "0.0.0.0")  # noqa: S104
    api_port: int = _setting(8000, "CALLBOARD_API_PORT", "The port of the API.", "8000", ge=1, le=65535)
    api_max_body_bytes: int = _setting(
        MAX_BODY_BYTES,
        "CALLBOARD_API_MAX_BODY_BYTES",
        "The longest body of a request to the API; a longer one is answered with 413.",
        "1048576",
        ge=1024,
        le=64 * 1024 * 1024,
    )
    api_access: Literal["open", "keys"] = _setting(
        "open",
        "CALLBOARD_API_ACCESS",
        "`keys`: each request needs an API key. `open`: none does, and the API answers this machine only.",
        "keys",
    )
    api_public: str = _setting(
        "",
        "CALLBOARD_API_PUBLIC",
        "What is open to everybody besides the probes, comma-separated: `docs`, `metrics`, `workers-health`.",
        "docs,metrics",
    )
    api_rate_per_second: float | None = _setting(
        None,
        "CALLBOARD_API_RATE_PER_SECOND",
        "How many requests a second each key may make to one API process, where the key says nothing else.",
        "100",
        ge=0.001,
        le=1_000_000,
    )
    api_rate_burst: int | None = _setting(
        None,
        "CALLBOARD_API_RATE_BURST",
        "How many it may make at once. By default as many as in a second.",
        "200",
        ge=1,
        le=1_000_000,
    )
    api_key_outage_seconds: float = _setting(
        900.0,
        "CALLBOARD_API_KEY_OUTAGE_SECONDS",
        "While PostgreSQL can't be asked, how long a key that was valid goes on working after it was last checked.",
        "900",
        ge=0,
        le=86400,
    )
    queue_depth_threshold: int = _setting(
        1000,
        "CALLBOARD_QUEUE_DEPTH_THRESHOLD",
        "A queue with more jobs that wait to start is degraded: `GET /api/workers/health` says so.",
        "1000",
        ge=1,
    )
    queue_depth_thresholds: str | None = _setting(
        None,
        "CALLBOARD_QUEUE_DEPTH_THRESHOLDS",
        "The same for single queues, comma-separated: `QUEUE=NUMBER`.",
        "email=5000,ai=50",
    )
    worker_host: str = _setting(
        "127.0.0.1",
        "CALLBOARD_WORKER_HOST",
        "The address of a worker's probes.",
        "0.0.0.0",  # noqa: S104
    )
    worker_port: int = _setting(
        9191,
        "CALLBOARD_WORKER_PORT",
        "The port of a worker's probes `/livez` and `/readyz`. Where it is taken, the next free one.",
        "9191",
        ge=1,
        le=65535,
    )
    run_dir: Path | None = _setting(
        None,
        "CALLBOARD_RUN_DIR",
        "A folder of this machine or pod, made where it is not there, by which `callboard drain` finds the workers.",
        "/tmp/callboard",  # noqa: S108
    )
    grace_seconds: float | None = _setting(
        None,
        "CALLBOARD_GRACE_SECONDS",
        "When a worker that is told to stop is killed. By default 30 s above the longest time limit of its queues.",
        "330",
        ge=3,
        le=7 * 86400,
    )
    stuck_seconds: float = _setting(
        60.0,
        "CALLBOARD_STUCK_SECONDS",
        "When a consumer that does not come round makes `/livez` fail. At least three times the wait for Redis.",
        "60",
        ge=1,
        le=3600,
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "CALLBOARD_LOG_FORMAT", "One line of text or one JSON object for each log record.", "json"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting(
        "INFO", "CALLBOARD_LOG_LEVEL", "The least level that is logged.", "INFO"
    )
    smtp_host: str = _setting("127.0.0.1", "CALLBOARD_SMTP_HOST", "The SMTP server.", SMTP_EXAMPLE)
    smtp_port: int = _setting(1025, "CALLBOARD_SMTP_PORT", "The port of the SMTP server.", "587", ge=1, le=65535)
    smtp_security: Literal["none", "starttls", "tls"] = _setting(
        "none",
        "CALLBOARD_SMTP_SECURITY",
        "`starttls` upgrades the connection and refuses to go on without; `tls` is encrypted from the start.",
        "starttls",
    )
    smtp_username: str | None = _setting(None, "CALLBOARD_SMTP_USERNAME", "The user to log in as.", "callboard")
    smtp_password: SecretStr | None = _setting(None, "CALLBOARD_SMTP_PASSWORD", "The password of that user.", "secret")
    smtp_timeout_seconds: float = _setting(
        30.0, "CALLBOARD_SMTP_TIMEOUT_SECONDS", "How long to wait for each SMTP reply.", "30", gt=0, le=600
    )
    mail_from: str = _setting(
        "callboard@localhost",
        "CALLBOARD_MAIL_FROM",
        "The sender's address of every mail.",
        "no-reply@example.com",
    )
    mail_templates: Path | None = _setting(
        None,
        "CALLBOARD_MAIL_TEMPLATES",
        "A folder with mail templates, in place of the ones that come with the service.",
        "/etc/callboard/templates",
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("redis_url")
    @classmethod
    def _redis_can_be_tried(cls, value: str | None) -> str | None:
        if value is not None:
            check_redis_url(value)
        return value

    @field_validator("database_url")
    @classmethod
    def _database_can_be_tried(cls, value: str | None) -> str | None:
        if value is not None:
            check_database_url(value)
        return value

    @field_validator("sentry_dsn")
    @classmethod
    def _sentry_can_be_tried(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s@/]+@[^\s@/]+(/[^\s@]*)?/\d+", value):
            raise ValueError("must be a DSN as Sentry shows it, with a key and the number of a project")
        return value

    @field_validator("namespace")
    @classmethod
    def _namespace_is_a_key_part(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
            raise ValueError("must be 1 to 64 letters, digits, dots, dashes or underscores")
        return value

    @field_validator("api_public")
    @classmethod
    def _pages_are_known(cls, value: str) -> str:
        if unknown := {name.strip() for name in value.split(",") if name.strip()} - PUBLIC_PAGES:
            raise ValueError(f"{', '.join(sorted(unknown))} is none of {', '.join(sorted(PUBLIC_PAGES))}")
        return value

    @field_validator("queue_depth_thresholds")
    @classmethod
    def _thresholds_are_of_queues(cls, value: str | None) -> str | None:
        thresholds_of(value or "")
        return value

    @field_validator("mail_from")
    @classmethod
    def _one_address(cls, value: str) -> str:
        if not re.fullmatch(r"[^\s@<>,;:\"\\\x00-\x1f\x7f]+@[^\s@<>,;:\"\\\x00-\x1f\x7f]+", value):
            raise ValueError("must be one bare e-mail address")
        return value

    @field_validator("mail_templates", "dead_letter_archive")
    @classmethod
    def _folder_exists(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_dir():
            raise ValueError("must be an existing folder")
        return value

    @model_validator(mode="after")
    def _login_is_whole(self) -> "Settings":
        if (self.smtp_username is None) != (self.smtp_password is None):
            is_set, is_not = "CALLBOARD_SMTP_USERNAME", "CALLBOARD_SMTP_PASSWORD"
            if self.smtp_username is None:
                is_set, is_not = is_not, is_set
            raise ValueError(
                f"{is_set} is set and {is_not} is not, and they go together; "
                "for example: CALLBOARD_SMTP_USERNAME=callboard CALLBOARD_SMTP_PASSWORD=secret"
            )
        return self

    @model_validator(mode="after")
    def _limits_fit(self) -> "Settings":
        if "max_payload_bytes" in self.model_fields_set and self.max_payload_bytes > self.max_message_bytes:
            raise ValueError(
                f"CALLBOARD_MAX_PAYLOAD_BYTES={self.max_payload_bytes} is over "
                f"CALLBOARD_MAX_MESSAGE_BYTES={self.max_message_bytes}, and would have no effect: raise both"
            )
        return self

    def require_redis_url(self) -> str:
        """Return REDIS_URL. Raises SettingsError where it is not set."""
        return _require(self.redis_url, "redis_url")

    def require_database_url(self) -> str:
        """Return DATABASE_URL. Raises SettingsError where it is not set."""
        return _require(self.database_url, "database_url")

    def depth_threshold_of(self, queue: str) -> int:
        """Return how many jobs may wait in a queue before it is degraded."""
        return thresholds_of(self.queue_depth_thresholds or "").get(queue, self.queue_depth_threshold)

    @property
    def served_queues(self) -> list[str]:
        """The queues that a process with these settings, and with what is installed beside it, can serve."""
        can_store = bool(self.database_url) and all(map(find_spec, DATABASE_PACKAGES))
        return [name for name, policy in QUEUES.items() if can_store or not policy.needs_database]

    @property
    def public_pages(self) -> list[str]:
        """The names in CALLBOARD_API_PUBLIC."""
        return [name.strip() for name in self.api_public.split(",") if name.strip()]

    @property
    def actor_modules(self) -> list[str]:
        """The names in CALLBOARD_ACTORS."""
        return [name.strip() for name in self.actors.split(",") if name.strip()]


def thresholds_of(text: str) -> dict[str, int]:
    """Read `QUEUE=NUMBER,...`. Raises ValueError."""
    thresholds: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        queue, _, number = item.partition("=")
        if queue not in QUEUES:
            raise ValueError(f"{queue!r} is no queue; known queues: {', '.join(QUEUES)}")
        if not (number.isascii() and number.isdecimal() and int(number) > 0):
            raise ValueError(f"{item!r} must be QUEUE=NUMBER, with a whole number, 1 or more")
        thresholds[queue] = int(number)
    return thresholds


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Read the environment, once for a process. Raises SettingsError."""
    return load_settings()


def load_settings() -> Settings:
    """Read the environment anew. Raises SettingsError that lists every wrong variable."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(item) for item in error.errors())) from None


def unknown_variables() -> list[str]:
    """Names in the environment that look like settings and are none: most often a misspelling."""
    known = {variable_of(name) for name in Settings.model_fields} | OTHER_VARIABLES
    return sorted(name for name in os.environ if name.startswith("CALLBOARD_") and name not in known)


#: Variables of the project that are not read through Settings: `callboard up` writes them for shells.
OTHER_VARIABLES = frozenset({"CALLBOARD_URL", "CALLBOARD_MAIL_DIR"})


def variable_of(field_name: str) -> str:
    """The environment variable that a field is read from."""
    return str(Settings.model_fields[field_name].validation_alias)


def mask(value: object, variable: str = "") -> str:
    """Return a value fit for a log: passwords in URLs, and all of a password variable, as `***`."""
    if "PASSWORD" in variable or "SECRET" in variable:
        return "***"
    return mask_url(str(value), is_url=variable.endswith("_URL"))


def _example_of(field_name: str) -> str:
    field = Settings.model_fields[field_name]
    return f"{variable_of(field_name)}={(field.examples or [''])[0]}"


def _require(value: str | None, field_name: str) -> str:
    if value is None:
        raise SettingsError(f"{variable_of(field_name)} is not set; for example: {_example_of(field_name)}")
    return value


def _explain(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    variable = str(item["loc"][0])
    field_name = next(name for name in Settings.model_fields if variable_of(name) == variable)
    value = mask(item["input"], variable)
    hint = ""
    if value.startswith("tcp://"):
        hint = " (Kubernetes sets such names for a Service called so: set enableServiceLinks: false on the pod)"
    return f"{variable}={value!r} is wrong: {message}{hint}; for example: {_example_of(field_name)}"
