"""Actors for the fault tests: they note each start with its process, and misbehave in their own ways."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import dramatiq
from dramatiq.worker import ConsumerThread

from service.broker import broker


def note(word: str) -> None:
    # One write to a file opened for appending is whole, whatever else writes, and survives the process.
    line = f"{word} {os.getpid()} {time.time():.3f}\n".encode()
    file = os.open(Path(os.environ["NOTES"]), os.O_WRONLY | os.O_APPEND)
    os.write(file, line)
    os.close(file)


@dramatiq.actor(broker=broker, actor_name="fault.good", queue_name="default")
def good(word: str, seconds: float = 0.05) -> str:
    note(f"start-{word}")
    time.sleep(seconds)
    note(f"end-{word}")
    return word


@dramatiq.actor(broker=broker, actor_name="fault.kill", queue_name="default")
def kill(how: str) -> None:
    note(f"kill-{how}")
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segfault":
        ctypes.string_at(0)
    else:
        os._exit(3)


@dramatiq.actor(broker=broker, actor_name="fault.kill_once", queue_name="default", max_deliveries=1)
def kill_once() -> None:
    note("kill-once")
    os.kill(os.getpid(), signal.SIGKILL)


@dramatiq.actor(broker=broker, actor_name="fault.fail", queue_name="default", min_backoff=100, max_backoff=200)
def fail(word: str) -> None:
    note(f"fail-{word}")
    time.sleep(0.5)
    raise ValueError(word)


@dramatiq.actor(broker=broker, actor_name="fault.spin", queue_name="default")
def spin(seconds: float) -> None:
    note("start-spin")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        pass
    note("end-spin")


@dramatiq.actor(broker=broker, actor_name="fault.end_consumers", queue_name="default")
def end_consumers() -> None:
    """Ends the threads that fetch, as no error can: they start again after those."""
    for thread in threading.enumerate():
        if isinstance(thread, ConsumerThread) and thread.ident:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    note("ended-consumers")


@dramatiq.actor(broker=broker, actor_name="fault.follows", queue_name="default")
def follows(message: dict[str, object], result: object) -> None:
    note("follows")
