"""Actors that run in a process of their own, and do there what no thread could be stopped from."""

import os
import re
import subprocess
import time
from typing import Any

from fault_jobs import note

from service.job import Backoff, SoftTimeLimit, job

OPTIONS: dict[str, Any] = {"queue": "default", "isolation": "process", "max_attempts": 1}


@job(name="isolated.sleep", timeout=1, **OPTIONS)
def sleep(*, seconds: float) -> int:
    note("begin")
    time.sleep(seconds)
    return os.getpid()


@job(name="isolated.regex", timeout=1, **OPTIONS)
def regex() -> None:
    note("begin")
    re.match(r"(a+)+$", "a" * 60 + "b")


@job(name="isolated.endless", **OPTIONS)
def endless() -> None:
    child = subprocess.Popen(["sleep", "600"])
    note("begin")
    note(f"grandchild-{child.pid}")
    re.match(r"(a+)+$", "a" * 60 + "b")


@job(name="isolated.soft", soft_timeout=1, timeout=20, **OPTIONS)
def soft() -> str:
    note("begin")
    try:
        time.sleep(15)
    except SoftTimeLimit:
        note("told")
        time.sleep(0.5)
        return "cleaned up"
    return "never told"


@job(
    name="isolated.memory",
    queue="default",
    isolation="process",
    memory_limit_mb=256,
    max_attempts=2,
    backoff=Backoff(0.01, 0.01),
)
def memory(*, megabytes: int) -> int:
    note("begin")
    return len(b"x" * megabytes * 1024 * 1024)


@job(name="isolated.segfault", **OPTIONS)
def segfault() -> None:
    import ctypes

    note("begin")
    ctypes.string_at(0)


@job(name="threaded.next", queue="default")
def next_one() -> None:
    note("next")
