"""Starts everything in order, and waits until all of it is ready."""

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Event

from service.cli.failure import CommandFailed
from service.cli.supervise.child import Child, how_it_ended
from service.cli.supervise.program import Program
from service.cli.supervise.supervisor import Supervisor
from service.cli.up import parts, postgres, valkey
from service.cli.up.leftovers import end_postgres_orphans
from service.cli.up.output import last_lines
from service.cli.up.plan import Plan
from service.cli.up.ports import listen_on, make_way, port_of
from service.cli.up.readiness import Readiness, announced_port, answers_ready
from service.queues import QUEUES

START_SECONDS = 120
GIVE_UP_AFTER = 5
LOADING_AT_ONCE = 1 + (os.cpu_count() or 1)


class Stopped(Exception):
    """The user stopped the start."""


class Stack:
    """The start of one `callboard up`."""

    def __init__(self, plan: Plan, supervisor: Supervisor, stop: Event) -> None:
        self._plan = plan
        self._supervisor = supervisor
        self._stop = stop
        self._readiness = Readiness()
        self._queue: deque[Callable[[], None]] = deque()
        self._deadline = time.monotonic() + START_SECONDS

    def start(self) -> None:
        """Start everything. Returns when all is ready; raises CommandFailed or Stopped."""
        plan, supervisor = self._plan, self._supervisor
        try:
            database_answers = self._start_postgres()
            self._start_redis()
            migration = supervisor.start(parts.migrate(plan, START_SECONDS))
            supervisor.start(parts.mail(plan))
            self._queue.append(partial(self._start_probed, partial(parts.plain, plan, parts.SCHEDULER)))
            for queue in QUEUES.values():
                self._queue.append(partial(self._start_probed, partial(parts.worker, plan, queue)))
            self._wait(database_answers, postgres.NAME)
            self._wait(lambda: migration.exit_code == 0, parts.MIGRATE)
            self._start_api()
            self._start_probed(partial(parts.plain, plan, parts.PROJECTOR))
            self._wait(lambda: not self._queue and not self._readiness.missing(), "a process")
        finally:
            self._readiness.give_up()

    def _start_postgres(self) -> Callable[[], bool]:
        plan = self._plan
        if plan.postgres is None:
            return lambda: True
        server = postgres.Postgres.find(plan.state, plan.base_env)
        server.prepare(plan.postgres_password)
        port = self._make_way(plan.postgres)
        child = self._supervisor.start(server.program(port, lambda: end_postgres_orphans(plan.state)))
        return lambda: server.answers(child.pid)

    def _start_redis(self) -> None:
        plan = self._plan
        if plan.redis is None:
            return
        port = port_of(plan.redis)
        program = valkey.valkey_program(plan.state, port, plan.redis_password, plan.base_env)
        self._make_way(plan.redis)
        self._supervisor.start(program)
        self._wait(lambda: valkey.valkey_answers(port, plan.redis_password), valkey.NAME)

    def _make_way(self, listener: socket.socket) -> int:
        port = port_of(listener)
        if keeper := make_way(listener):
            self._plan.kept.append(keeper)
        return port

    def _start_api(self) -> None:
        host, port = _loopback(self._plan.settings.api_host), self._plan.addresses.api_port
        self._supervisor.start(parts.api(self._plan))
        self._readiness.watch(parts.API, lambda: answers_ready(host, port))

    def _start_probed(self, program_with: Callable[[int], Program]) -> None:
        """Start a process that answers on a probe port of its own, a free one."""
        listener = listen_on(None)
        port = port_of(listener)
        program = program_with(port)
        listener.close()
        child = self._supervisor.start(program)
        host, folder = _loopback(self._plan.settings.worker_host), self._plan.state.run
        # Another process may take the port before this one has loaded; then it answers on the next free one.
        self._readiness.watch(program.name, lambda: answers_ready(host, announced_port(folder, child.pid) or port))

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            if self._stop.wait(0.02):
                raise Stopped
            self._supervisor.tick()
            # All at once would share the processors among ten loading interpreters, and the API, which has to wait for
            # the migration, would be ready long after the last worker.
            if self._queue and len(self._readiness.missing()) < LOADING_AT_ONCE:
                self._queue.popleft()()
            self._check(what)

    def _check(self, what: str) -> None:
        for child in self._supervisor.children.values():
            if why := _hopeless(child):
                raise self._failure(child.name, why)
        if time.monotonic() > self._deadline:
            raise self._failure((self._readiness.missing() or [what])[0], f"is not ready after {START_SECONDS} s")

    def _failure(self, name: str, why: str) -> CommandFailed:
        log = self._plan.state.log_of(name)
        return CommandFailed(f"{name} {why}. The last lines of {log}:\n\n{last_lines(log)}\n")


def _loopback(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def _hopeless(child: Child) -> str | None:
    """Say why a child that has just died will not come up, if so."""
    failed_once = child.program.once and child.exit_code not in (None, 0)
    if failed_once or child.exit_code == os.EX_CONFIG or child.young_deaths >= GIVE_UP_AFTER:
        return how_it_ended(child.exit_code)
    return None
