"""Process groups: every program has one of its own, so that what it started can be ended with it."""

import contextlib
import os
import signal
import time


def signal_group(group_id: int, number: signal.Signals) -> bool:
    """Send a signal to all of a group. False when nothing of it is left."""
    try:
        os.killpg(group_id, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS answers so when only zombies are left; elsewhere the group is not ours to end.
        return False
    return True


def kill_rest_of_group(group_id: int) -> None:
    """Kill what a leader that has ended left behind, and take its zombies away where they have become ours.

    They do where the supervisor is the first process of a container. The wait has an end, because a zombie counts as a
    member and elsewhere they are taken away by whoever comes first.
    """
    deadline = time.monotonic() + 1.0
    while signal_group(group_id, signal.SIGKILL) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-group_id, os.WNOHANG)
        time.sleep(0.01)
