"""`callboard keys`: make, list, rotate and revoke API keys."""

import argparse
from datetime import timedelta
from typing import Any

from service.cli.acts import audited
from service.cli.failure import CommandFailed
from service.cli.who import user

GRACE = "1d"
#: The database knows no time after the year 294276, and Python none after 9999.
LONGEST = timedelta(days=36_500)


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each act."""
    acts = parser.add_subparsers(metavar="ACT", required=True)
    create = acts.add_parser("create", help="make a key, and show it this once")
    create.add_argument("name", metavar="NAME", help="who uses it: one for each client")
    create.add_argument(
        "--scope", action="append", required=True, metavar="SCOPE", help="submit, read, operate or admin; repeatable"
    )
    create.add_argument("--tenant", metavar="NAME", help="it sends and sees the jobs of this tenant only")
    create.add_argument("--expires", type=_time, metavar="TIME", help="such as 90d or 12h (default: never)")
    create.add_argument("--rate", type=_rate, metavar="N", help="requests per second and API process")
    create.add_argument("--burst", type=_count, metavar="N", help="requests at once (default: those of a second)")
    create.set_defaults(act=_create)

    listing = acts.add_parser("list", help="all keys, the newest first")
    listing.set_defaults(act=_list)

    rotate = acts.add_parser("rotate", help="give a key a new secret, and show it this once")
    rotate.add_argument("key", metavar="NAME_OR_ID")
    rotate.add_argument(
        "--grace",
        type=_grace,
        default=_grace(GRACE),
        metavar="TIME",
        help=f"the old secret works on (default: {GRACE})",
    )
    rotate.add_argument("--why", default="", metavar="TEXT", help="kept in the audit log")
    rotate.set_defaults(act=_rotate)

    revoke = acts.add_parser("revoke", help="end a key now")
    revoke.add_argument("key", metavar="NAME_OR_ID")
    revoke.add_argument("--why", default="", metavar="TEXT", help="kept in the audit log")
    revoke.set_defaults(act=_revoke)


def run(arguments: argparse.Namespace) -> int:
    """Do one act and say what was done."""
    from service.access.keys import KeyStore
    from service.settings import get_settings
    from service.state.database import engine_for

    engine = engine_for(get_settings().require_database_url())
    try:
        arguments.act(KeyStore(engine), arguments)
    finally:
        engine.dispose()
    return 0


def _create(store: Any, arguments: argparse.Namespace) -> None:
    from service.access.scopes import Scope

    if unknown := set(arguments.scope) - set(Scope):
        raise CommandFailed(f"Unknown scope {', '.join(sorted(unknown))}; the scopes are {', '.join(Scope)}")
    if arguments.burst is not None and arguments.rate is None:
        raise CommandFailed("--burst has no effect without --rate")
    meant = {"name": arguments.name, "scopes": arguments.scope, "tenant": arguments.tenant}
    with audited("keys create", filter=meant) as done:
        key, token = store.create(
            arguments.name,
            [Scope(name) for name in arguments.scope],
            by=user(),
            tenant=arguments.tenant,
            expires_in=arguments.expires,
            rate_per_second=arguments.rate,
            burst=arguments.burst,
        )
        done.count = 1
        _show_once(key, token)


def _list(store: Any, arguments: argparse.Namespace) -> None:
    found = store.all()
    for key in found:
        print(_line(key))
    if not found:
        print("None.")


def _rotate(store: Any, arguments: argparse.Namespace) -> None:
    with audited("keys rotate", why=arguments.why, filter={"key": arguments.key}) as done:
        rotated = store.rotate(arguments.key, arguments.grace)
        done.count = 0 if rotated is None else 1
        if rotated is not None:
            key, token = rotated
            _show_once(key, token)
            until = f"{key.previous_until:%Y-%m-%d %H:%M:%S}"
            print(f"The old secret works until {until} UTC; one before that works no longer.")
    if rotated is None:
        raise CommandFailed(f"There is no key {arguments.key!r} that could be rotated")


def _revoke(store: Any, arguments: argparse.Namespace) -> None:
    with audited("keys revoke", why=arguments.why, filter={"key": arguments.key}) as done:
        key = store.revoke(arguments.key)
        done.count = 0 if key is None else 1
    if key is None:
        raise CommandFailed(f"There is no key {arguments.key!r} that could be revoked")
    print(f"{key.key_id} {key.name} is revoked; API processes refuse it within 5 s")


def _show_once(key: Any, token: str) -> None:
    # Before the act's line is completed: were that to fail, nobody would ever see the secret.
    print(_line(key))
    print(f"\n  {token}\n\nThis is shown once: only its hash is stored.")


def _line(key: Any) -> str:
    words = [key.key_id, key.name, ",".join(sorted(key.scopes)), f"tenant={key.tenant or '-'}"]
    if key.rate_per_second is not None:
        words.append(f"rate={key.rate_per_second:g}/s")
    words.append(f"expires={key.expires_at:%Y-%m-%dT%H:%M:%SZ}" if key.expires_at else "expires=never")
    return " ".join([*words, "revoked"] if key.revoked_at else words)


def _time(text: str) -> timedelta:
    from service.durations import seconds_of
    from service.errors import DeclarationError

    try:
        time = timedelta(seconds=seconds_of(text, "it"))
    except (DeclarationError, OverflowError):
        raise argparse.ArgumentTypeError('must be a time such as "12h" or "90d"') from None
    if time > LONGEST:
        raise argparse.ArgumentTypeError(f"must be {LONGEST.days} days at most")
    return time


def _grace(text: str) -> timedelta:
    return timedelta() if text in ("0", "0s") else _time(text)


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.001 <= rate <= 1_000_000:
        raise argparse.ArgumentTypeError("must be 0.001 to 1000000")
    return rate


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1_000_000:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return count
