"""Starts everything in order, and says what is missing until all of it is ready."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

from service.cli.failure import CommandFailed
from service.cli.supervise.child import Child, how_it_ended
from service.cli.supervise.program import Program
from service.cli.supervise.supervisor import Supervisor
from service.cli.up import postgres, valkey
from service.cli.up.environment import child_environment
from service.cli.up.leftovers import end_postgres_orphans
from service.cli.up.output import last_lines
from service.cli.up.plan import Plan
from service.cli.up.ports import listen_on, port_of
from service.cli.up.readiness import Readiness, answers_ready
from service.cli.worker import worker_argv
from service.queues import QUEUES, QueuePolicy

API, PROJECTOR, SCHEDULER, MIGRATE, MAIL = "api", "projector", "scheduler", "migrate", "mail"
RESERVED = frozenset({API, PROJECTOR, SCHEDULER, MIGRATE, MAIL, valkey.NAME, postgres.NAME})

START_SECONDS = 120
DRAIN_SECONDS = 30
GIVE_UP_AFTER = 5
LOADING_AT_ONCE = 1 + (os.cpu_count() or 1)


class Stopped(Exception):
    """The user stopped the start."""


class Stack:
    """All processes of one `callboard up`."""

    def __init__(self, plan: Plan, supervisor: Supervisor, stop: Event) -> None:
        self._plan = plan
        self._supervisor = supervisor
        self._stop = stop
        self._readiness = Readiness()
        self._queue: deque[Callable[[], None]] = deque()
        self._deadline = time.monotonic() + START_SECONDS

    def start(self) -> None:
        """Start everything. Returns when all is ready; raises CommandFailed or Stopped."""
        try:
            database = self._start_postgres()
            self._start_redis()
            migration = self._start_migration()
            self._start_mail()
            self._queue = deque([partial(self._start_own, SCHEDULER), *map(self._worker, QUEUES.values())])
            self._wait(lambda: database is None or database(), postgres.NAME)
            self._wait(lambda: migration.exit_code == 0, MIGRATE)
            self._start_api()
            self._start_own(PROJECTOR)
            self._wait(lambda: not self._queue and not self._readiness.missing(), "")
        finally:
            self._readiness.give_up()

    def _start_postgres(self) -> Callable[[], bool] | None:
        plan = self._plan
        if plan.postgres is None:
            return None
        server = postgres.Postgres.find(plan.state, plan.base_env)
        server.prepare(plan.postgres_password)
        port = port_of(plan.postgres)
        plan.postgres.close()
        child = self._start(server.program(port, lambda: end_postgres_orphans(plan.state)))
        return lambda: server.answers(child.pid)

    def _start_redis(self) -> None:
        plan = self._plan
        if plan.redis is None:
            return
        port = port_of(plan.redis)
        program = valkey.valkey_program(plan.state, port, plan.redis_password, plan.base_env)
        plan.redis.close()
        self._start(program)
        self._wait(lambda: valkey.valkey_answers(port, plan.redis_password), valkey.NAME)

    def _start_migration(self) -> Child:
        # Started before the database answers: it waits for it, and has loaded by then.
        argv = _own(MIGRATE, "--wait", str(START_SECONDS))
        return self._start(self._program(MIGRATE, argv, once=True))

    def _start_mail(self) -> None:
        fd, folder = self._plan.mail.fileno(), str(self._plan.state.mail)
        argv = (sys.executable, "-m", "service.cli.up.mail_catcher", "--fd", str(fd), "--folder", folder)
        self._start(self._program(MAIL, argv, pass_fds=(fd,)))

    def _worker(self, queue: QueuePolicy) -> Callable[[], None]:
        argv = worker_argv([queue.name], queue.concurrency, "--worker-shutdown-timeout", str(DRAIN_SECONDS * 1000))
        return partial(self._start_probed, worker_name(queue.name), argv)

    def _start_own(self, name: str) -> None:
        self._start_probed(name, _own(name))

    def _start_api(self) -> None:
        fd, host = self._plan.api.fileno(), self._plan.settings.api_host
        self._start(self._program(API, _own(API, "--fd", str(fd)), pass_fds=(fd,)))
        port = self._plan.addresses.api_port
        own_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        self._readiness.watch(API, lambda: answers_ready(own_host, port))

    def _start_probed(self, name: str, argv: tuple[str, ...]) -> None:
        listener = listen_on(None)
        port = port_of(listener)
        program = self._program(name, argv, worker_port=port)
        listener.close()
        self._start(program)
        host = self._plan.settings.worker_host
        self._readiness.watch(name, lambda: answers_ready("127.0.0.1" if host == "0.0.0.0" else host, port))  # noqa: S104

    def _program(
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        worker_port: int | None = None,
        once: bool = False,
        pass_fds: tuple[int, ...] = (),
    ) -> Program:
        env = child_environment(self._plan.base_env, self._plan.addresses, worker_port)
        return Program(name, argv, env=env, log=self._log_of(name), once=once, pass_fds=pass_fds)

    def _start(self, program: Program) -> Child:
        return self._supervisor.start(program)

    def _log_of(self, name: str) -> Path:
        return self._plan.state.log_of(name)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            if self._stop.wait(0.02):
                raise Stopped
            self._supervisor.tick()
            # All at once would share the processors among ten loading interpreters, and the API, which has to wait for
            # the migration, would be ready long after the last worker.
            if self._queue and len(self._readiness.missing()) < LOADING_AT_ONCE:
                self._queue.popleft()()
            for child in self._supervisor.children.values():
                if why := _hopeless(child):
                    raise self._failure(child.name, why)
            if time.monotonic() > self._deadline:
                missing = [name for name in (what, *self._readiness.missing()) if name]
                raise self._failure(missing[0], f"is not ready after {START_SECONDS} s")

    def _failure(self, name: str, why: str) -> CommandFailed:
        log = self._log_of(name)
        return CommandFailed(f"{name} {why}. The last lines of {log}:\n\n{last_lines(log)}\n")


def worker_name(queue_name: str) -> str:
    """Return the name of a queue's worker: the queue's, unless another process is called so."""
    return f"worker-{queue_name}" if queue_name in RESERVED else queue_name


def _own(command: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "service.cli", command, *options)


def _hopeless(child: Child) -> str | None:
    """Say why a child that has just died will not come up, if so."""
    failed_once = child.program.once and child.exit_code not in (None, 0)
    if failed_once or child.exit_code == os.EX_CONFIG or child.young_deaths >= GIVE_UP_AFTER:
        return how_it_ended(child.exit_code)
    return None
