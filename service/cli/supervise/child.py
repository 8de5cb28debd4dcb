"""One program and the process that runs it now."""

import contextlib
import os
import signal
import subprocess
import time
from typing import IO

from service.cli.supervise.groups import kill_rest_of_group, signal_group
from service.cli.supervise.program import Program


class Child:
    """A program's process. It may be started again after it has died."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.young_deaths = 0
        self.deaths = 0
        self.exit_code: int | None = None
        #: The process group of its newest process, also when that has ended.
        self.group = 0
        self.restart_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def pid(self) -> int | None:
        """The process id while it runs; it is the id of its group as well."""
        return self._process.pid if self._process else None

    @property
    def lifetime_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started_at

    def start(self) -> int:
        """Start the process and return its id."""
        program = self.program
        program.before_start()
        user, group = program.owner or (None, None)
        with self._output() as output:
            self._process = subprocess.Popen(
                program.argv,
                env=program.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                # A session of its own: the terminal's Ctrl-C reaches the supervisor only, which stops all in order.
                start_new_session=True,
                pass_fds=program.pass_fds,
                user=user,
                group=group,
                extra_groups=None if program.owner is None else [],
            )
        self._started_at = time.monotonic()
        self.group = self._process.pid
        self.exit_code = None
        return self._process.pid

    def ended(self) -> bool:
        """Say whether the process has just ended; then the rest of its group is ended too, and `exit_code` is set.

        `dramatiq`'s master may die and leave its worker behind, which would go on taking jobs unsupervised.
        """
        if self._process is None or self._process.poll() is None:
            return False
        kill_rest_of_group(self._process.pid)
        self.exit_code = self._process.returncode
        self.deaths += 1
        self._process = None
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; it tells those it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Kill all of its group."""
        if self._process is not None:
            signal_group(self._process.pid, signal.SIGKILL)

    def _output(self) -> "contextlib.AbstractContextManager[IO[bytes] | None]":
        if self.program.log is None:
            return contextlib.nullcontext()
        # Its folder may have been deleted since the last start.
        self.program.log.parent.mkdir(mode=0o700, exist_ok=True)
        # Appending, so that the file may be emptied while the process runs.
        return self.program.log.open("ab")


def how_it_ended(exit_code: int | None) -> str:
    """Return an exit code in words."""
    if exit_code is None:
        return "is running"
    if exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    if exit_code == os.EX_CONFIG:
        return "ended with exit code 78: a setting is wrong"
    return f"ended with exit code {exit_code}"
