"""`callboard queues`: what is on each queue; pause, resume and purge one."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from service.cli.acts import noted
from service.cli.failure import CommandFailed
from service.cli.who import add_who, who

COLUMNS = ("pending", "scheduled", "waiting", "running", "retrying", "paused", "dead")


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each act; without one, the list."""
    parser.set_defaults(act=_list, json=False)
    acts = parser.add_subparsers(metavar="ACT")
    listing = acts.add_parser("list", help="what is on each queue, by state (the default)")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    for name, act, summary in (
        ("pause", _pause, "let nothing of a queue start, also after restarts; what runs goes on"),
        ("resume", _resume, "let a paused queue go on"),
        ("purge", _purge, "take out what waits on a queue: it ends as cancelled"),
    ):
        one = acts.add_parser(name, help=summary)
        one.add_argument("queue", metavar="QUEUE")
        add_who(one)
        one.set_defaults(act=act)
        if name == "purge":
            one.add_argument("--confirm", metavar="QUEUE", help="the queue's name once more")
            one.add_argument("--dry-run", action="store_true", help="only count")
            one.add_argument("--keep", action="store_true", help="as dead letters, which can be replayed")


def run(arguments: argparse.Namespace) -> int:
    """Do one act and say what was done."""
    from service.broker import broker
    from service.broker.queue_acts import QueueActs
    from service.observe.logs import configure_logs
    from service.queues import QUEUES
    from service.settings import get_settings

    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    queue = getattr(arguments, "queue", None)
    if queue is not None and queue not in QUEUES:
        raise CommandFailed(f"Unknown queue {queue!r}; known queues: {', '.join(QUEUES)}")
    arguments.act(QueueActs(broker), arguments)
    return 0


def _list(acts: Any, arguments: argparse.Namespace) -> None:
    rows = acts.counts()
    if arguments.json:
        for row in rows:
            print(json.dumps(asdict(row), default=lambda time: time.isoformat()))
        return
    print(f"{'queue':<16}" + "".join(f"{name:>11}" for name in COLUMNS) + f"{'oldest s':>11}")
    for row in rows:
        oldest = "" if row.oldest_seconds is None else f"{row.oldest_seconds:.1f}"
        print(f"{row.name:<16}" + "".join(f"{getattr(row, name):>11}" for name in COLUMNS) + f"{oldest:>11}")
    for row in rows:
        if row.pause:
            why = f": {row.pause.why}" if row.pause.why else ""
            print(f"{row.name} is paused since {row.pause.at.isoformat(timespec='seconds')} by {row.pause.by}{why}")


def _pause(acts: Any, arguments: argparse.Namespace) -> None:
    with noted("queues pause", arguments, {"queue": arguments.queue}) as done:
        changed = acts.pause(arguments.queue, by=who(arguments), why=arguments.why)
        done.count = int(changed)
    print(f"{arguments.queue} {'is paused' if changed else 'was paused already'}")


def _resume(acts: Any, arguments: argparse.Namespace) -> None:
    with noted("queues resume", arguments, {"queue": arguments.queue}) as done:
        changed = acts.resume(arguments.queue, by=who(arguments), why=arguments.why)
        done.count = int(changed)
    print(f"{arguments.queue} {'goes on' if changed else 'is not paused'}")


def _purge(acts: Any, arguments: argparse.Namespace) -> None:
    if arguments.dry_run:
        print(f"{acts.counts_of(arguments.queue).purgeable} jobs of {arguments.queue} would be purged")
        return
    if arguments.confirm != arguments.queue:
        raise CommandFailed(f"Say --confirm {arguments.queue} to purge it, or --dry-run to count what that would take")
    with noted("queues purge", arguments, {"queue": arguments.queue, "keep": arguments.keep}) as done:
        purged = acts.purge(arguments.queue, by=who(arguments), why=arguments.why, keep=arguments.keep)
        done.count = purged
    print(f"{purged} jobs of {arguments.queue} are {'dead letters now' if arguments.keep else 'cancelled'}")
