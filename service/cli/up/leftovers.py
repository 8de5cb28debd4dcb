"""Ends what a killed supervisor has left behind: its children, theirs, and the servers."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable

import psutil

from service.cli.up import postgres, valkey
from service.cli.up.records import SUPERVISOR, Record, Records, same_time
from service.cli.up.state_dir import StateDir

#: In the environment of every process of `up`, with the path of the state folder; inherited by what they start. It is
#: in no file that a shell sources, so that a user's own processes never carry it.
MARK = "UNDER_CALLBOARD_UP"

#: Beside the mark: the id of the supervisor and the time of its start.
SUPERVISED_BY = "UNDER_CALLBOARD_UP_BY"

GRACE_SECONDS = 5.0
#: A supervisor that is asked to stop lets running jobs finish first; the limits of draining.py are shorter in all.
SUPERVISOR_GRACE_SECONDS = 90.0
SERVERS = frozenset({valkey.NAME, postgres.NAME})

logger = logging.getLogger(__name__)


def marks(state: StateDir, supervisor: int) -> dict[str, str]:
    """Return the variables by which a process is known."""
    return {MARK: str(state.root), SUPERVISED_BY: f"{supervisor} {psutil.Process(supervisor).create_time()}"}


def end_leftovers(state: StateDir) -> list[str]:
    """End all that is left, servers last, and return the names of what was. Only for the holder of the lock."""
    lost = supervisors(state)
    _end_supervisors(lost)
    records = Records(state.run)
    recorded = records.all()
    servers = [record for record in recorded if record.name in SERVERS]
    others = [record for record in recorded if record.name not in SERVERS]
    names = {record.name for record in recorded if record.runs()} | {record.name for record in lost}
    left = _family(others) + [process for process in _marked(state) if not _is_server(process, servers, state)]
    _end(left)
    # What was started while the others ended is found by the mark.
    left_servers = _family(servers) + _marked(state)
    _end(left_servers)
    for record in recorded:
        records.forget(record.name)
    for announcement in state.run.glob("*.port"):
        announcement.unlink(missing_ok=True)
    if (left or left_servers) and not names:
        names.add("processes without a record")
    return sorted(names)


def end_postgres_orphans(state: StateDir) -> None:
    """End the server processes that outlived their postmaster: a new one refuses to start beside them."""
    _kill(process for process in psutil.process_iter() if _is_postgres(process) and _has_title(process, state.title))


def supervisors(state: StateDir) -> list[Record]:
    """Return who looks after what carries the mark, but for this process.

    More than the holder of the lock only where the lock's file was deleted and they have not noticed yet.
    """
    values = {_variable(process, SUPERVISED_BY) for process in psutil.process_iter() if _has_mark(process, state)}
    found = [_supervisor(value) for value in values if value]
    return [record for record in found if record and record.pid != os.getpid() and record.runs()]


def _supervisor(value: str) -> Record | None:
    try:
        pid, create_time = value.split()
        return Record(SUPERVISOR, int(pid), float(create_time))
    except ValueError:
        return None


def _end_supervisors(lost: list[Record]) -> None:
    for record in lost:
        logger.warning("A run whose folder was deleted is still there: stopping it (pid %d)", record.pid)
    processes: list[psutil.Process] = []
    for record in lost:
        with contextlib.suppress(psutil.Error):
            processes.append(psutil.Process(record.pid))
    _end(processes, SUPERVISOR_GRACE_SECONDS)


def _family(records: list[Record]) -> list[psutil.Process]:
    """Return the recorded processes and the rest of their groups, the recorded ones first."""
    by_group = {record.pid: record for record in records}
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            record = by_group.get(os.getpgid(process.pid))
            if record is not None and _belongs(process, record):
                found.append(process)
    return sorted(found, key=lambda process: process.pid not in by_group)


def _belongs(process: psutil.Process, record: Record) -> bool:
    if process.pid == record.pid:
        return same_time(process.create_time(), record.create_time)
    try:
        leader = psutil.Process(record.pid)
    except psutil.NoSuchProcess:
        # An id is not given to a new process while a group still has it: this is the group that we started.
        return process.create_time() >= record.create_time - 1
    return same_time(leader.create_time(), record.create_time)


def _marked(state: StateDir) -> list[psutil.Process]:
    """Return the processes that carry the mark or a server's title, recorded or not."""
    own = os.getpid()
    return [
        process
        for process in psutil.process_iter()
        if process.pid != own and (_has_mark(process, state) or _has_title(process, state.title))
    ]


def _has_mark(process: psutil.Process, state: StateDir) -> bool:
    return _variable(process, MARK) == str(state.root)


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _has_title(process: psutil.Process, title: str) -> bool:
    try:
        return any(title in part for part in process.cmdline())
    except (psutil.Error, OSError):
        return False


def _is_server(process: psutil.Process, servers: list[Record], state: StateDir) -> bool:
    return any(process.pid == record.pid for record in servers) or _has_title(process, state.title)


def _end(processes: list[psutil.Process], grace_seconds: float | None = None) -> None:
    """Ask those to stop that lead, so that they stop theirs in order, then kill what is left."""
    # Each once, though it may have been found in two ways: PostgreSQL stops in haste when it is asked twice.
    processes = list(dict.fromkeys(processes))
    alive = {process.pid for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() not in alive:
                # SIGINT is PostgreSQL's fast shutdown; with SIGTERM it waits for its clients.
                process.send_signal(_stop_signal(process))
    deadline = time.monotonic() + (GRACE_SECONDS if grace_seconds is None else grace_seconds)
    while any(_is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    _kill(processes)


def _stop_signal(process: psutil.Process) -> int:
    return signal.SIGINT if _is_postgres(process) else signal.SIGTERM


def _is_postgres(process: psutil.Process) -> bool:
    # The postmaster keeps its command line, the others have "postgres: <title>" in its place.
    return _has_title(process, "cluster_name=") or _has_title(process, "postgres: ")


def _kill(processes: Iterable[psutil.Process]) -> None:
    killed: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
            killed.append(process)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(_is_alive(process) for process in killed) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
