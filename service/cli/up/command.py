"""`callboard up`: checks what can be checked at once, takes the lock, and runs."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.cli.up.lock import UpLock
    from service.cli.up.running import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """`--detach` is for scripts; people watch the output."""
    parser.add_argument("--detach", action="store_true", help="return when all is ready; stop with `callboard down`")


def run(arguments: argparse.Namespace) -> int:
    """Run until Ctrl-C, SIGTERM or `callboard down`."""
    from service.settings import load_settings

    settings = load_settings()
    require_extra()

    from service.access.open_mode import check_may_listen
    from service.cli.failure import CommandFailed
    from service.cli.up.detach import in_background
    from service.cli.up.lock import UpLock
    from service.cli.up.running import Run
    from service.cli.up.state_dir import StateDir

    check_may_listen(settings, settings.api_host)
    state = StateDir.here()
    lock = UpLock(state.lock)
    try:
        state.make()
        is_the_only_one = lock.acquire()
    except OSError as error:
        raise CommandFailed(f"The folder {state.root} can't be used: {error}") from None
    if not is_the_only_one:
        print(_who_runs(lock), file=sys.stderr)
        return 1
    if arguments.detach:
        return in_background(
            state.log_of("up"), lambda on_ready: _run(Run(state, settings, lock, detached=True), on_ready)
        )
    return _run(Run(state, settings, lock, detached=False), lambda text: print(text, flush=True))


def require_extra() -> None:
    """Raise CommandFailed where the packages of the extra `embedded` are missing."""
    import importlib.util

    from service.cli.failure import CommandFailed

    missing = [name for name in ("psutil", "aiosmtpd") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"This needs {' and '.join(missing)}: pip install 'callboard[embedded]'")


def _run(run: "Run", on_ready: Callable[[str], None]) -> int:
    run.run(on_ready)
    return 0


def _who_runs(lock: "UpLock") -> str:
    # The holder of the lock writes its address down as soon as it has chosen one.
    for _ in range(40):
        record = lock.holder()
        if record and record.url:
            return f"Callboard runs already in this directory: pid {record.pid}, API at {record.url}"
        time.sleep(0.05)
    return "Callboard runs already in this directory, and is just starting or stopping."
