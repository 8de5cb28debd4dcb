"""Ends the processes of single jobs when their worker dies, however it dies and whatever they do: also in C code that
holds the interpreter, where their own watch can't run, and also what their jobs have started.

A program of its own, small and quick to start, so it imports nothing of ours. From its standard input it reads which
process groups there are, a line each: `+PID` or `-PID`. The input ends with the worker.
"""

import contextlib
import os
import select
import signal

LOOK_SECONDS = 1.0


def main() -> None:
    """Guard until the worker is gone."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a service manager sends these to all; the worker drains first
    worker, groups, rest = os.getppid(), set[int](), b""
    while os.getppid() == worker:  # a fork of the worker may keep the input open
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            continue
        part = os.read(0, 65536)
        if not part:
            break
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
