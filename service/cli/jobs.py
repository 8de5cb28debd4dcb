"""`callboard jobs`: cancel jobs, and give those that wait another priority or time."""

import argparse
from datetime import UTC, datetime
from typing import Any

from service.cli.acts import noted
from service.cli.failure import CommandFailed
from service.cli.who import add_who, who


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each act."""
    acts = parser.add_subparsers(metavar="ACT", required=True)
    cancel = acts.add_parser("cancel", help="cancel jobs: at once where they wait, in a moment where they run")
    cancel.add_argument("job_ids", metavar="JOB_ID", nargs="+")
    add_who(cancel)
    cancel.set_defaults(act=_cancel)

    move = acts.add_parser("move", help="give a job that waits another priority, another time, or both")
    move.add_argument("job_id", metavar="JOB_ID")
    move.add_argument("--priority", type=int, choices=range(10), metavar="0-9", help="0 goes first")
    when = move.add_mutually_exclusive_group()
    when.add_argument(
        "--delay", type=_seconds, metavar="TIME", help="from now on: seconds, or such as 90s, 15m, 2h, 1d"
    )
    when.add_argument("--at", type=_time, metavar="TIME", help="ISO 8601 (UTC if not said)")
    when.add_argument("--now", action="store_const", const=0.0, dest="delay", help="it may start at once")
    add_who(move)
    move.set_defaults(act=_move)


def run(arguments: argparse.Namespace) -> int:
    """Do one act and say what was done."""
    from service.broker import broker
    from service.broker.job_acts import JobActs
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    return int(arguments.act(JobActs(broker), arguments))


def _cancel(acts: Any, arguments: argparse.Namespace) -> int:
    failed = 0
    for job_id in arguments.job_ids:
        with noted("jobs cancel", arguments, {"job_id": job_id}) as done:
            act = acts.cancel(job_id, by=who(arguments), why=arguments.why)
            done.count = int(act is not None and act.done)
        if act is None:
            said = "is not on a queue: unknown, or ended some time ago"
        elif not act.done:
            said = f"is {act.state}, and can't be cancelled"
        else:
            said = "runs, and its worker is told to stop it" if act.state == "running" else "is cancelled"
        print(f"{job_id} {said}")
        failed += not (act and act.done)
    return 1 if failed else 0


def _move(acts: Any, arguments: argparse.Namespace) -> int:
    if arguments.priority is None and arguments.delay is None and arguments.at is None:
        raise CommandFailed("Say --priority, --delay, --at or --now")
    with noted("jobs move", arguments, {"job_id": arguments.job_id}) as done:
        act = acts.reschedule(
            arguments.job_id,
            by=who(arguments),
            why=arguments.why,
            priority=arguments.priority,
            delay_ms=None if arguments.delay is None else int(arguments.delay * 1000),
            run_at=arguments.at,
        )
        done.count = int(act is not None and act.done)
    if act is None:
        raise CommandFailed(f"{arguments.job_id} is not on a queue: unknown, or ended some time ago")
    if not act.done:
        raise CommandFailed(f"{arguments.job_id} is {act.state}: only a job that waits can be given another place")
    due = f", due {act.run_at.isoformat(timespec='milliseconds')}" if act.run_at else ""
    print(f"{arguments.job_id} is {act.state} with priority {act.priority}{due}")
    return 0


def _seconds(text: str) -> float:
    from service.durations import seconds_of
    from service.errors import DeclarationError
    from service.queues import MAX_DELAY_SECONDS

    try:
        seconds = seconds_of(float(text) if text.replace(".", "", 1).isdigit() else text, "TIME")
    except DeclarationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds > MAX_DELAY_SECONDS:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_DELAY_SECONDS} seconds")
    return seconds


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be ISO 8601, such as 2026-12-01T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
