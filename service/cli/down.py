"""`callboard down`: drains and stops what `callboard up` runs in this directory."""

import argparse
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.cli.up.lock import UpLock
    from service.cli.up.state_dir import StateDir

PATIENCE_SECONDS = 120


def configure(_parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_arguments: argparse.Namespace) -> int:
    """Stop the supervisor, or clean up after one that was killed; say so when there is neither."""
    from service.cli.up.command import require_extra

    require_extra()
    from service.cli.up.lock import UpLock
    from service.cli.up.state_dir import StateDir

    state = StateDir.here()
    lock = UpLock(state.lock)
    # Without the folder there is nothing to lock; yet what ran in it may still be there.
    if not state.root.is_dir() or lock.acquire():
        return _clean_up(state)
    return _stop(state, lock)


def _clean_up(state: "StateDir") -> int:
    from service.cli.up.leftovers import end_leftovers

    if ended := end_leftovers(state):
        print(f"Ended what an earlier run had left: {', '.join(ended)}.")
    else:
        print("Nothing runs in this directory.")
    return 0


def _stop(state: "StateDir", lock: "UpLock") -> int:
    from service.cli.failure import CommandFailed
    from service.cli.up.leftovers import supervisors
    from service.cli.up.records import Records

    names = [record.name for record in Records(state.run).all() if record.runs()]
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked = None
    # The lock is free when the supervisor is gone.
    while not lock.acquire():
        record = lock.holder() or next(iter(supervisors(state)), None)
        if record and record.pid != asked:
            asked = record.pid
            print(f"Stopping (pid {asked}): {', '.join(names) or 'all that it runs'} ...", flush=True)
            os.kill(asked, signal.SIGTERM)
        if time.monotonic() > deadline:
            raise CommandFailed(f"The supervisor (pid {asked}) is still stopping after {PATIENCE_SECONDS} s.")
        time.sleep(0.05)
    print("Stopped.")
    return 0
