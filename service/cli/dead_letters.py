"""`callboard dead-letters`: list, show, replay and delete jobs that are dead."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, NoReturn

from service.cli.acts import Done, noted
from service.cli.failure import CommandFailed
from service.cli.who import who

WIDTH = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each act."""
    acts = parser.add_subparsers(metavar="ACT", required=True)
    listing = acts.add_parser("list", help="the newest first")
    _add_filter(listing)
    listing.add_argument("--limit", type=int, default=50, metavar="N")
    listing.add_argument("--cursor", help="what the page before ended with")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.set_defaults(act=_list)

    show = acts.add_parser("show", help="all that is known of one, as JSON")
    show.add_argument("job_id", metavar="JOB_ID")
    show.set_defaults(act=_show)

    replay = acts.add_parser("replay", help="put one, or with --all those that fit, back on its queue")
    replay.add_argument("job_id", metavar="JOB_ID", nargs="?")
    replay.add_argument("--payload", type=_payload, metavar="JSON", help="in place of the one that it died with")
    replay.add_argument("--all", action="store_true", help="all that fit the options below, the oldest first")
    _add_filter(replay)
    replay.add_argument("--limit", type=int, metavar="N")
    replay.add_argument("--per-second", type=float, metavar="N", help="the pace (default: as fast as it goes)")
    replay.add_argument("--dry-run", action="store_true", help="say how many of what, and do nothing")
    replay.add_argument("--request", metavar="NAME", help="repeated under this name, nothing is replayed twice")
    _add_who(replay, "kept with the job, and logged")
    replay.set_defaults(act=_replay)

    delete = acts.add_parser("delete", help="remove one for good")
    delete.add_argument("job_id", metavar="JOB_ID")
    delete.add_argument("--all", action=_NoBulkDelete, nargs=0, help=argparse.SUPPRESS)
    _add_who(delete, "logged")
    delete.set_defaults(act=_delete)


def run(arguments: argparse.Namespace) -> int:
    """Do one act and say what was done."""
    from service.broker import broker
    from service.broker.dead_letters import DeadLetters
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    settings = get_settings()
    # Without a database, who has replayed or deleted what, and why, is told in the log only.
    configure_logs(settings)
    settings.require_redis_url()
    arguments.act(DeadLetters(broker), arguments)
    return 0


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue")
    parser.add_argument("--function", metavar="NAME", help="the actor")
    parser.add_argument("--reason", help="such as failed, crashed, timed-out, expired, invalid")
    parser.add_argument("--error-type", metavar="TYPE", help="such as SMTPDataError or smtplib.SMTPDataError")
    parser.add_argument("--since", type=_time, metavar="TIME", help="died at or after this, ISO 8601 (UTC if not said)")
    parser.add_argument("--until", type=_time, metavar="TIME", help="died at or before this")
    parser.add_argument("--tenant", metavar="NAME", help="whose job it was")


def _add_who(parser: argparse.ArgumentParser, where: str) -> None:
    parser.add_argument("--by", default=None, metavar="NAME", help="who does it (default: the user of this machine)")
    parser.add_argument("--why", default="", metavar="TEXT", help=where)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be ISO 8601, such as 2026-12-01T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _payload(text: str) -> object:
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if payload is None:
        # It would pass for an option that was not given.
        raise argparse.ArgumentTypeError("must be a JSON object")
    return payload


class _NoBulkDelete(argparse.Action):
    """What is deleted is lost, so each is named."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(
            "there is no bulk delete: `callboard dead-letters list` names the jobs, and `delete JOB_ID` removes one; "
            "what is older than CALLBOARD_DEAD_LETTER_DAYS is removed by the projector"
        )


def _filter(arguments: argparse.Namespace) -> Any:
    from service.broker.dead_letters import Filter
    from service.broker.outcome import Reason
    from service.queues import QUEUES

    if arguments.queue is not None and arguments.queue not in QUEUES:
        raise CommandFailed(f"Unknown queue {arguments.queue!r}; known queues: {', '.join(QUEUES)}")
    if arguments.reason is not None and arguments.reason not in set(Reason):
        raise CommandFailed(f"Unknown reason {arguments.reason!r}; known reasons: {', '.join(Reason)}")
    return Filter(
        queue=arguments.queue,
        function=arguments.function,
        reason=arguments.reason and Reason(arguments.reason),
        error_type=arguments.error_type,
        since=arguments.since,
        until=arguments.until,
        tenant=arguments.tenant,
    )


def _list(letters: Any, arguments: argparse.Namespace) -> None:
    page = letters.page(_filter(arguments), cursor=arguments.cursor, limit=arguments.limit)
    for letter in page.letters:
        if arguments.json:
            print(json.dumps(_shown(letter)))
        else:
            what = _one_line(f"{letter.error['type']}: {letter.error['message']}")
            place = f"{letter.original_queue} {letter.function}"
            print(f"{letter.failed_at} {letter.job_id} {place} {letter.reason.value} {what}")
    if page.cursor:
        print(f"more: --cursor {page.cursor}")
    elif not page.letters and not arguments.json:
        print("None.")


def _told(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("queue", "function", "reason", "error_type", "since", "until", "tenant", "limit", "request")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}


def _one_line(text: str) -> str:
    line = text.partition("\n")[0][:WIDTH]
    return line if line == text else f"{line}…"


def _show(letters: Any, arguments: argparse.Namespace) -> None:
    print(json.dumps(_shown(_one(letters, arguments.job_id)), indent=2, ensure_ascii=False))


def _shown(letter: Any) -> dict[str, Any]:
    from service.broker import broker

    try:
        import service.actors  # noqa: F401 # pyright: ignore[reportUnusedImport] - they say what is personal
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an actor's module may do anything
        print(f"Payloads are masked, since the actors can't be imported: {error!r}", file=sys.stderr)
    return letter.shown(broker.get_actor(letter.function) if broker.is_named(letter.function) else None)


def _replay(letters: Any, arguments: argparse.Namespace) -> None:
    if arguments.all == (arguments.job_id is not None):
        raise CommandFailed("Name either one JOB_ID or --all, with options that say which")
    if arguments.all and arguments.payload is not None:
        raise CommandFailed("--payload is for one JOB_ID")
    by = who(arguments)
    if arguments.all:
        with (
            nullcontext(Done())
            if arguments.dry_run
            else noted("dead-letters replay", arguments, _told(arguments)) as do
        ):
            report = letters.replay_many(
                _filter(arguments),
                by=by,
                why=arguments.why,
                limit=arguments.limit,
                per_second=arguments.per_second,
                dry_run=arguments.dry_run,
                request=arguments.request,
            )
            do.count = report.replayed
        for (queue, function, reason), number in sorted(report.counts.items()):
            print(f"{number} {queue} {function} {reason}")
        print(f"{report.replayed} {'would be ' if arguments.dry_run else ''}replayed, {report.skipped} skipped")
        return
    from service.broker.dead_letters import Replay
    from service.errors import JobExists

    if arguments.payload is not None:
        import service.actors  # noqa: F401 # pyright: ignore[reportUnusedImport] - the payload is checked by its actor
    letter = _one(letters, arguments.job_id)
    if arguments.dry_run:
        print(f"1 {letter.original_queue} {letter.function} {letter.reason.value} would be replayed")
        return
    try:
        with noted("dead-letters replay", arguments, {"job_id": letter.job_id}) as act:
            done = letters.replay(
                letter, by=by, why=arguments.why, payload=arguments.payload, request=arguments.request
            )
            act.count = int(done is Replay.DONE)
    except JobExists as error:
        raise CommandFailed(f"{letter.job_id} can't be replayed: {error}") from error
    said = {
        Replay.DONE: "replayed",
        Replay.DONE_BEFORE: "was replayed before by this request",
        Replay.GONE: "is no dead letter any more",
        Replay.ON_ITS_QUEUE: "is on its queue: it was sent again",
        Replay.FOREIGN: "can't be replayed: Callboard has not written it, and does not know its place",
    }[done]
    if done not in (Replay.DONE, Replay.DONE_BEFORE):
        raise CommandFailed(f"{letter.job_id} {said}")
    print(f"{letter.job_id} {said}")


def _delete(letters: Any, arguments: argparse.Namespace) -> None:
    letter = _one(letters, arguments.job_id)
    with noted("dead-letters delete", arguments, {"job_id": letter.job_id}) as done:
        is_deleted = letters.delete(letter, by=who(arguments), why=arguments.why)
        done.count = int(is_deleted)
    if not is_deleted:
        raise CommandFailed(f"{letter.job_id} is no dead letter any more")
    print(f"{letter.job_id} deleted")


def _one(letters: Any, job_id: str) -> Any:
    letter = letters.get(job_id)
    if letter is None:
        raise CommandFailed(f"There is no dead letter of the job {job_id}")
    return letter
