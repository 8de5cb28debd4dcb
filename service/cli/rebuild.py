"""`callboard rebuild`: fill a Redis that has lost jobs from the database."""

import argparse
import sys
from typing import Any

from service.cli.acts import audited

MOST_NAMED = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """It only ever adds what is missing."""
    parser.add_argument("--dry-run", action="store_true", help="say how many of what would come back, and do nothing")
    parser.add_argument(
        "--dead-letters", action="store_true", help="bring them back also to queues that have dead letters of their own"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="kept in the audit log")


def run(arguments: argparse.Namespace) -> int:
    """Bring back what is missing, and say what could not be. Returns 1 where that is anything."""
    from service.broker import broker
    from service.observe.logs import configure_logs
    from service.settings import get_settings
    from service.state.database import engine_for
    from service.state.rebuild import Rebuild

    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    _know_actors()
    engine = engine_for(settings.require_database_url())
    rebuild = Rebuild(
        broker,
        engine,
        letters_days=settings.dead_letter_days,
        all_letters=arguments.dead_letters,
        dry_run=arguments.dry_run,
    )
    try:
        if arguments.dry_run:
            rebuild.run()
        else:
            with audited("rebuild", why=arguments.why, filter={"dead_letters": arguments.dead_letters}) as done:
                try:
                    rebuild.run()
                finally:
                    done.count = rebuild.report.total
    finally:
        _tell(rebuild.report, "would come back" if arguments.dry_run else "came back")
        engine.dispose()
    return 1 if rebuild.report.lost else 0


def _know_actors() -> None:
    try:
        import service.actors  # noqa: F401 # pyright: ignore[reportUnusedImport] - they say how often a job may be delivered
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an actor's module may do anything
        print(f"Jobs get the usual limits, since the actors can't be imported: {error!r}", file=sys.stderr)


def _tell(report: Any, verb: str) -> None:
    for (queue, state), number in sorted(report.restored.items()):
        again = ": they run again" if state == "running" else ""
        print(f"{number} {queue} {state}{again}")
    print(f"{report.total} jobs {verb}")
    if report.keys:
        print(f"{report.keys.total()} idempotency keys {verb}, with how their jobs have ended")
    for queue, number in sorted(report.letters_left.items()):
        if number:
            has = f"since {queue} has dead letters of its own (--dead-letters brings them back)"
            print(f"{number} dead letters of {queue} are left in the database, {has}")
    for one in report.lost[:MOST_NAMED]:
        print(f"not restored: {one.job_id} {one.queue} {one.state}: {one.why}")
    if len(report.lost) > MOST_NAMED:
        print(f"not restored: {len(report.lost) - MOST_NAMED} more, which are in the log")
    print(
        "Nobody knows of jobs that were sent and had not reached the database. The logs of attempts, progress and "
        "checkpoints are lost, and pauses of queues."
    )
