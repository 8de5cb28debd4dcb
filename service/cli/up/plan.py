"""Decides before anything is started: which servers are ours, which ports everything gets."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from service.cli.up import external, postgres, valkey
from service.cli.up.choices import Port, Ports, named_port, named_url
from service.cli.up.environment import Addresses, base_environment, write_env_file
from service.cli.up.ports import listen_near, listen_on, port_of
from service.cli.up.private_file import password_in
from service.cli.up.state_dir import StateDir
from service.settings import Settings, variable_of

DEFAULT_API_PORT = 8000
DEFAULT_MAIL_PORT = 1025


@dataclass(slots=True)
class Plan:
    """What is decided. A server that is ours has a listener, which keeps its port until the server is started.

    kept: what keeps the ports from then on.
    """

    taken: dict[str, int]
    state: StateDir
    settings: Settings
    addresses: Addresses
    base_env: dict[str, str]
    api: socket.socket
    mail: socket.socket
    redis: socket.socket | None
    postgres: socket.socket | None
    redis_password: str
    postgres_password: str
    kept: list[socket.socket] = field(default_factory=list[socket.socket])


def make_plan(state: StateDir, settings: Settings, environment: Mapping[str, str]) -> Plan:
    """Decide, and write it down in `.callboard/env`. Raises CommandFailed for a named server that can't be used."""
    redis_password = password_in(state.root / "redis.password")
    base_env = base_environment(environment, state)
    tell_postgres = partial(_change_password, state, base_env)
    postgres_password = password_in(state.root / "postgres.password", tell_postgres)
    redis_url = named_url(settings.redis_url, redis_password)
    database_url = named_url(settings.database_url, postgres_password)
    if redis_url:
        external.check_redis(redis_url)
    if database_url:
        external.check_postgres(database_url)
    ports = Ports.load(state.ports)
    api = _listen(ports, "api", settings.api_host, _named(environment, settings, "api_port"), DEFAULT_API_PORT)
    mail_port = _named(environment, settings, "smtp_port") if smtp_is_local(settings) else None
    mail = _listen(ports, "mail", "127.0.0.1", mail_port, DEFAULT_MAIL_PORT)
    redis = None if redis_url else _listen_again(ports, valkey.NAME)
    database = None if database_url else _listen_again(ports, postgres.NAME)
    addresses = Addresses(
        redis_url or valkey.url(ports.by_name[valkey.NAME].chosen, redis_password),
        database_url or postgres.url(ports.by_name[postgres.NAME].chosen, postgres_password),
        port_of(api),
        port_of(mail),
        state.mail,
    )
    ports.save(state.ports)
    write_env_file(state.env, addresses, environment)
    return Plan(
        taken={name: port.wished for name, port in ports.by_name.items() if port.wished not in (0, port.chosen)},
        state=state,
        settings=settings,
        addresses=addresses,
        base_env=base_env,
        api=api,
        mail=mail,
        redis=redis,
        postgres=database,
        redis_password=redis_password,
        postgres_password=postgres_password,
    )


def smtp_is_local(settings: Settings) -> bool:
    """Say whether the SMTP settings can be meant for the catcher; others, and their port, are a real server's."""
    return settings.smtp_host in ("127.0.0.1", "localhost", "::1")


def present_environment() -> dict[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


def _change_password(state: StateDir, base_env: dict[str, str], password: str) -> None:
    if state.postgres.exists():
        postgres.Postgres.find(state, base_env).set_password(password)


def _named(environment: Mapping[str, str], settings: Settings, field_name: str) -> int | None:
    return named_port(environment, variable_of(field_name), getattr(settings, field_name))


def _listen(ports: Ports, name: str, host: str, named: int | None, default: int) -> socket.socket:
    wished = ports.wish(name, named, default)
    listener = listen_near(host, wished)
    ports.by_name[name] = Port(wished, port_of(listener))
    return listener


def _listen_again(ports: Ports, name: str) -> socket.socket:
    """Take the port of the last run where it is still free: a shell that knows the old address can go on."""
    listener = listen_on(ports.chosen(name))
    ports.by_name[name] = Port(0, port_of(listener))
    return listener
