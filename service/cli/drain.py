"""`callboard drain`: makes the workers of this machine or pod start nothing more, and waits until they hold no job.

For the preStop hook of Kubernetes, which is followed by SIGTERM and counts into the grace period. It asks the workers
themselves, by what they have written into CALLBOARD_RUN_DIR: it works without Redis, and imports no actor.
"""

import argparse
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

INTERVAL_SECONDS = 0.1
#: A process that does not answer for so long is asked again.
ANSWER_SECONDS = 2.0
#: How long to ask workers that never answer: within Kubernetes' own grace period.
UNKNOWN_SECONDS = 20.0


def configure(parser: argparse.ArgumentParser) -> None:
    """How long to wait is known by the workers."""
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for running jobs (default: until the workers interrupt them, "
        "15 s before the end of their grace period)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Drain, and say what came of it. 1 where jobs still run at the end: SIGTERM interrupts them and gives back."""
    from service.errors import SettingsError
    from service.settings import get_settings

    folder = get_settings().run_dir
    if folder is None:
        raise SettingsError(
            "CALLBOARD_RUN_DIR is not set, and the workers can't be found without it; "
            "for example: CALLBOARD_RUN_DIR=/tmp/callboard, for them too"
        )
    try:
        _check_readable(folder)
    except OSError as error:
        raise SettingsError(
            f"CALLBOARD_RUN_DIR={str(folder)!r} can't be read, and the workers that it tells of are unknown: {error}; "
            "drain as the user that they run as"
        ) from None
    return drain(folder, arguments.timeout)


def _check_readable(folder: Path) -> None:
    """Raise OSError where workers may run that this user is not told of: that is not the same as none."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                path.open().close()


def drain(folder: Path, timeout_seconds: float | None) -> int:
    """Drain the workers that a folder tells of, also those that start meanwhile. Returns the exit code."""
    from service.observe.run_dir import announced

    began = time.monotonic()
    met: set[int] = set()
    drained: set[int] = set()
    with ThreadPoolExecutor(max_workers=32) as pool:  # one that does not answer must not hold up the others
        while True:
            states = [state for state in pool.map(_ask, announced(folder, "worker")) if state]
            busy = [state for state in states if state.is_busy]
            met.update(state.pid for state in states)
            drained.update(state.pid for state in states if not state.is_busy)
            waited = time.monotonic() - began
            if not busy:
                said = [f"drained after {waited:.1f} s: {_names(drained)}"] if drained else []
                # By SIGTERM, after which it drains as well, or killed.
                said += [f"ended within {waited:.1f} s: {_names(met - drained)}"] if met - drained else []
                print(f"Drain: {'; '.join(said) or f'no worker runs in {folder}'}")
                return 0
            if timeout_seconds is None:
                known = [state.seconds_left for state in busy if state.seconds_left is not None]
                if known:
                    timeout_seconds = waited + max(known)
            if waited >= (UNKNOWN_SECONDS if timeout_seconds is None else timeout_seconds):
                print(f"Drain: not over after {waited:.1f} s: {'; '.join(map(str, busy))}", file=sys.stderr)
                return 1
            time.sleep(INTERVAL_SECONDS)


@dataclass(frozen=True, slots=True)
class _State:
    """What a worker process has said. Of one that does not answer, only the process id is known."""

    pid: int
    held: int | None = None
    running: int = 0
    seconds_left: float | None = None

    @property
    def is_busy(self) -> bool:
        return self.held != 0

    def __str__(self) -> str:
        if self.held is None:
            return f"process {self.pid} does not answer"
        return f"process {self.pid} runs {self.running} jobs, and holds {self.held - self.running} more"


def _ask(announcement: tuple[int, str]) -> _State | None:
    """Ask one worker to drain. None where it is gone, whatever has its port now."""
    pid, text = announcement
    try:
        about = json.loads(text)
        host = "127.0.0.1" if about["host"] == "0.0.0.0" else about["host"]  # noqa: S104
        with closing(http.client.HTTPConnection(host, about["port"], timeout=ANSWER_SECONDS)) as connection:
            connection.request("POST", "/drain", headers={"Authorization": f"Bearer {about['secret']}"})
            answer = connection.getresponse()
            if answer.status != 200:
                return None
            said = json.load(answer)
            return _State(pid, said["held"], said["running"], said["seconds_left"])
    except (ConnectionRefusedError, ValueError, KeyError, TypeError):
        return None
    except (OSError, http.client.HTTPException):
        return _State(pid)


def _names(pids: set[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, sorted(pids)))}"
