"""The processes of our own that `up` runs, as programs; the servers are in valkey.py and postgres.py."""

import sys

from service.cli.supervise.program import Program
from service.cli.up import postgres, valkey
from service.cli.up.environment import child_environment
from service.cli.up.plan import Plan
from service.cli.worker import worker_argv
from service.queues import QueuePolicy

API, PROJECTOR, SCHEDULER, MIGRATE, MAIL = "api", "projector", "scheduler", "migrate", "mail"
RESERVED = frozenset({API, PROJECTOR, SCHEDULER, MIGRATE, MAIL, valkey.NAME, postgres.NAME})

#: How long running jobs may take to finish when all is stopped.
DRAIN_SECONDS = 30


def migrate(plan: Plan, wait_seconds: int) -> Program:
    """Return the migration. It is started before the database answers, and has loaded by then."""
    return _program(plan, MIGRATE, _command(MIGRATE, "--wait", str(wait_seconds)), once=True)


def mail(plan: Plan) -> Program:
    """Return the mail catcher, which takes over the plan's socket."""
    fd = plan.mail.fileno()
    argv = (sys.executable, "-m", "service.cli.up.mail_catcher", "--fd", str(fd), "--folder", str(plan.state.mail))
    return _program(plan, MAIL, argv, pass_fds=(fd,))


def api(plan: Plan) -> Program:
    """Return the API, which takes over the plan's socket."""
    fd = plan.api.fileno()
    return _program(plan, API, _command(API, "--fd", str(fd)), pass_fds=(fd,))


def plain(plan: Plan, name: str, probe_port: int) -> Program:
    """Return the projector or the scheduler."""
    return _program(plan, name, _command(name), probe_port=probe_port)


def worker(plan: Plan, queue: QueuePolicy, probe_port: int) -> Program:
    """Return the worker of one queue."""
    limit = ("--worker-shutdown-timeout", str(DRAIN_SECONDS * 1000))
    argv = worker_argv([queue.name], queue.concurrency, *limit)
    return _program(plan, worker_name(queue.name), argv, probe_port=probe_port)


def worker_name(queue_name: str) -> str:
    """Return the name of a queue's worker: the queue's, unless another process is called so."""
    return f"worker-{queue_name}" if queue_name in RESERVED else queue_name


def _command(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "service.cli", name, *options)


def _program(
    plan: Plan,
    name: str,
    argv: tuple[str, ...],
    *,
    probe_port: int | None = None,
    once: bool = False,
    pass_fds: tuple[int, ...] = (),
) -> Program:
    env = child_environment(plan.base_env, plan.addresses, probe_port)
    return Program(name, argv, env=env, log=plan.state.log_of(name), once=once, pass_fds=pass_fds)
