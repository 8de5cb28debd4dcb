"""`callboard schedules`: list, pause, resume and run schedules, and see when one would be due."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from service.cli.acts import noted
from service.cli.failure import CommandFailed
from service.cli.who import who


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each act."""
    acts = parser.add_subparsers(metavar="ACT", required=True)
    listing = acts.add_parser("list", help="all, each with its next due times")
    listing.add_argument("--next", type=_count, default=1, metavar="N", help="how many due times (default: 1)")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.set_defaults(act=_list)

    for act, summary, function in (
        ("pause", "let no due time have a job", _pause),
        ("resume", "go on from now", _resume),
        ("run", "send one job now, also of a paused one", _run),
    ):
        one = acts.add_parser(act, help=summary)
        one.add_argument("name", metavar="NAME")
        one.add_argument("--by", default=None, metavar="NAME", help="who does it (default: the user of this machine)")
        if act == "pause":
            one.add_argument("--why", default="", metavar="TEXT", help="shown with the schedule")
        one.set_defaults(act=function)

    preview = acts.add_parser("preview", help="say when a crontab line would be due")
    preview.add_argument("cron", metavar="CRON", help="five fields, quoted")
    preview.add_argument("--timezone", default="UTC", metavar="ZONE")
    preview.add_argument("--next", type=_count, default=10, metavar="N")
    preview.add_argument("--after", type=_time, default=None, metavar="TIME", help="ISO 8601 (default: now)")
    preview.set_defaults(act=_preview)


def run(arguments: argparse.Namespace) -> int:
    """Do one act and say what was done."""
    if arguments.act is _preview:
        _preview(arguments)
        return 0
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    arguments.act(_book(settings), arguments)
    return 0


def _book(settings: Any) -> Any:
    import service.actors  # noqa: F401  # pyright: ignore[reportUnusedImport] - what schedules send to
    from service.broker import broker
    from service.schedules.book import ScheduleBook
    from service.schedules.code_table import load_table

    engine = None
    if settings.database_url is None:
        print("DATABASE_URL is not set: only the schedules in code are known", file=sys.stderr)
    else:
        from service.state.database import engine_for

        engine = engine_for(settings.database_url)
    return ScheduleBook(broker, load_table(settings.schedules), engine)


def _list(book: Any, arguments: argparse.Namespace) -> None:
    pages = book.pages(arguments.next)
    for page in pages:
        times = _on_the_wall(page.next_times, page.schedule.timezone) if page.schedule else []
        state = page.state
        if arguments.json:
            document = {
                "name": page.name,
                "source": page.source,
                "state": page.standing,
                "next_times": times,
                "missed": state.missed if state else 0,
                "last_scheduled_for": state.last_run.scheduled_for.isoformat() if state and state.last_run else None,
                "problem": page.problem,
            }
            print(json.dumps(document))
        else:
            told = page.problem or ", ".join(times) or "-"
            print(f"{page.name} {page.source} {page.standing} missed={state.missed if state else 0} next: {told}")
    if not pages and not arguments.json:
        print("None.")


def _pause(book: Any, arguments: argparse.Namespace) -> None:
    with noted("schedules pause", arguments, {"schedule": arguments.name}):
        book.pause(arguments.name, by=who(arguments), why=arguments.why)
    print(f"{arguments.name} paused")


def _resume(book: Any, arguments: argparse.Namespace) -> None:
    with noted("schedules resume", arguments, {"schedule": arguments.name}):
        book.resume(arguments.name, by=who(arguments))
    print(f"{arguments.name} resumed")


def _run(book: Any, arguments: argparse.Namespace) -> None:
    with noted("schedules run", arguments, {"schedule": arguments.name}) as done:
        job_id = book.run_now(arguments.name, by=who(arguments))
        done.count = 1
    print(f"{arguments.name} sent {job_id}")


def _preview(arguments: argparse.Namespace) -> None:
    from service.errors import DeclarationError
    from service.schedules import Cron, Schedule
    from service.schedules.due import next_times

    try:
        schedule = Schedule("preview", "preview", Cron(arguments.cron, arguments.timezone))
    except DeclarationError as error:
        raise CommandFailed(str(error)) from None
    for text in _on_the_wall(
        next_times(schedule, arguments.after or datetime.now(UTC), arguments.next), schedule.timezone
    ):
        print(text)


def _on_the_wall(times: Sequence[datetime], timezone: str) -> list[str]:
    from service.schedules.zones import zone_named

    zone = zone_named(timezone)
    return [f"{time.astimezone(zone).isoformat(timespec='seconds')} {timezone}" for time in times]


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError("must be 1 to 1000")
    return int(text)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be ISO 8601, such as 2026-12-01T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
