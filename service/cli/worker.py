"""`callboard worker [QUEUE ...]`: keeps the worker processes of queues running, and replaces one that died."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from service.cli.supervise.program import Program

logger = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """The table of queues says how many processes and threads; the options override it."""
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="the queues to serve (default: all)")
    parser.add_argument("--processes", type=_at_least_one, default=None, help="worker processes to keep running")
    parser.add_argument("--threads", type=_at_least_one, default=None, help="threads of each process")


def run(arguments: argparse.Namespace) -> int:
    """Supervise until a signal ends it, then wait until each process has drained."""
    from service.cli.stopping import stop_on_signals
    from service.cli.supervise.supervisor import Supervisor
    from service.observe import run_dir
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    stop = stop_on_signals()
    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    supervisor = Supervisor(
        # What a process of long ago has said, whose number a new one has now.
        on_start=lambda child: run_dir.forget(run_dir.DRAINING, str(child.group)),
        final=[os.EX_CONFIG],  # a wrong setting does not mend itself
        # What died while its pod drains would come back to take jobs.
        is_over=lambda child: run_dir.is_announced(run_dir.DRAINING, str(child.group)),
    )
    try:
        names = arguments.queues or settings.served_queues
        for program in programs(names, arguments.processes, arguments.threads):
            supervisor.start(program)
        while not stop.wait(0.1):
            supervisor.tick()
            if any(child.exit_code == os.EX_CONFIG for child in supervisor.children.values()):
                # It has said which setting is wrong, and the next one would say the same.
                logger.error("Ending: set right what the lines above name, and start the worker again")
                return os.EX_CONFIG
    finally:
        # No limit: a process ends by itself when its jobs have had their grace period.
        supervisor.stop(supervisor.names())
    return 0


def programs(queue_names: Sequence[str], processes: int | None = None, threads: int | None = None) -> list[Program]:
    """Return the processes that serve these queues together. Raises DeclarationError for an unknown queue."""
    from service.broker.grace import grace_seconds_of, working_seconds_of
    from service.queues import QUEUES, policy_of
    from service.settings import get_settings

    policies = [policy_of(name) for name in dict.fromkeys(queue_names or QUEUES)]
    names = [policy.name for policy in policies]
    threads = threads or sum(policy.concurrency for policy in policies)
    processes = processes or max(policy.processes for policy in policies)
    # Dramatiq's own limit, ten minutes, is less than what a job of some queues may take.
    grace_ms = int(working_seconds_of(grace_seconds_of(names, get_settings().grace_seconds)) * 1000)
    argv = worker_argv(names, threads, "--worker-shutdown-timeout", str(grace_ms))
    label = "worker" if len(policies) > 1 else policies[0].name
    return [Program(f"{label}-{number}", argv) for number in range(1, processes + 1)]


def worker_argv(queue_names: Sequence[str], threads: int, *options: str) -> tuple[str, ...]:
    """Return the command of one worker process."""
    dramatiq = (sys.executable, "-m", "dramatiq", "service.actors", "--processes", "1", "--threads", str(threads))
    # Its own logging has another format than ours, which `service.actors` sets up.
    return (*dramatiq, "--skip-logging", *options, "--queues", *queue_names)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
