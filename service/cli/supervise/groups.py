"""Process groups: every program has one of its own, so that what it started can be ended with it."""

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


def kill_group(group_id: int, patience_seconds: float = 2.0) -> None:
    """Kill all of a group and wait until it is gone.

    The wait has an end because a zombie counts as a member, and some containers have no init that takes zombies away.
    """
    deadline = time.monotonic() + patience_seconds
    while signal_group(group_id, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.01)
