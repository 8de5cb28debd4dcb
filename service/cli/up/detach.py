"""`up --detach`: the supervisor goes to the background, and the command waits for its word."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

READY = "ready\n"


def in_background(log: Path, supervise: Callable[[Callable[[str], None]], int]) -> int:
    """Run `supervise(on_ready)` in a process of its own session, and return 0 once it is ready, else its exit code.

    The process is a copy of this one, lock included, so nothing is loaded twice. What it hands to `on_ready` is printed
    here; what it prints itself goes to the log.
    """
    print(f"Starting, which takes some seconds; what happens is in {os.path.relpath(log)}", file=sys.stderr, flush=True)
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os._exit(_be_background(log, writer, supervise))
    os.close(writer)
    _pass_signals_to(pid)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        word = pipe.read()
    if word.startswith(READY):
        sys.stdout.write(word.removeprefix(READY))
        return 0
    sys.stderr.write(word or "Stopped before all was ready.\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or 1


def _be_background(log: Path, writer: int, supervise: Callable[[Callable[[str], None]], int]) -> int:
    os.setsid()
    _redirect(log)
    waiting = os.fdopen(writer, "w", encoding="utf-8")

    def on_ready(text: str) -> None:
        print(text, flush=True)
        _tell(waiting, READY + text)

    def on_failure(text: str) -> None:
        print(text, flush=True)
        _tell(waiting, text)

    from service.errors import CallboardError, SettingsError

    try:
        return supervise(on_ready)
    except CallboardError as error:
        on_failure(f"{error}\n")
        return os.EX_CONFIG if isinstance(error, SettingsError) else 1
    except BaseException:  # noqa: BLE001 - the last resort of a process that nobody watches
        import traceback

        on_failure(traceback.format_exc())
        return 1


def _tell(waiting: TextIO, text: str) -> None:
    if waiting.closed:
        # The command has had its word and is gone.
        return
    # It may have been killed while it waited; that is no reason for the service to end.
    with contextlib.suppress(BrokenPipeError), waiting:
        waiting.write(text)


def _redirect(log: Path) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(nowhere, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _pass_signals_to(pid: int) -> None:
    """Ctrl-C while waiting stops the start."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
