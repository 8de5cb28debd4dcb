"""Whether SIGTERM to a container, which goes to its process 1, can reach anything at all.

A shell passes no signal on to what it waits for, and process 1 is not ended by a signal that it does not catch.
"""

import re
import signal
from contextlib import suppress
from pathlib import Path

SHELLS = frozenset({"ash", "bash", "busybox", "dash", "sh", "zsh"})


def deaf_shell(process: Path = Path("/proc/1")) -> str | None:
    """Return the name of process 1 where it is a shell that does not catch SIGTERM, and else None."""
    with suppress(OSError, ValueError):
        name = (process / "comm").read_text().strip()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", (process / "status").read_text(), re.MULTILINE)
        if name in SHELLS and caught and not int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return name
    return None
