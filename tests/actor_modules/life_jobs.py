"""Actors for the life of worker processes: what they block, hold up, start and leave behind."""

import asyncio
import ctypes
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import dramatiq
from fault_jobs import note

from service.broker import broker


def stop_a_child() -> dict[str, Any]:
    child = subprocess.Popen(["sleep", "600"])
    status = dict(
        line.split(":\t") for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":\t" in line
    )
    begun = time.monotonic()
    child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return {
        "exit_code": child.returncode,
        "seconds": time.monotonic() - begun,
        "blocked_here": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "blocked": numbers_in(status["SigBlk"]),
        "ignored": numbers_in(status["SigIgn"]),
    }


def numbers_in(mask: str) -> list[int]:
    return [number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1]


@dramatiq.actor(broker=broker, actor_name="life.children", queue_name="default")
def children() -> dict[str, Any]:
    return stop_a_child()


@dramatiq.actor(broker=broker, actor_name="life.children_async", queue_name="default")
async def children_async() -> dict[str, Any]:
    return stop_a_child()


@dramatiq.actor(broker=broker, actor_name="life.children_alone", queue_name="default", max_deliveries=1)
def children_alone() -> dict[str, Any]:
    return stop_a_child()


@dramatiq.actor(broker=broker, actor_name="life.nap", queue_name="default")
async def nap(word: str, seconds: float) -> None:
    note(f"start-{word}")
    await asyncio.sleep(seconds)
    note(f"end-{word}")


@dramatiq.actor(broker=broker, actor_name="life.burn", queue_name="default")
def burn(word: str, seconds: float) -> None:
    note(f"start-{word}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    note(f"end-{word}")


@dramatiq.actor(broker=broker, actor_name="life.steps", queue_name="default")
def steps(word: str, seconds: float) -> None:
    """Sleeps so that it can be interrupted between two steps."""
    note(f"start-{word}")
    try:
        for _ in range(int(seconds / 0.05)):
            time.sleep(0.05)
        note(f"end-{word}")
    finally:
        note(f"left-{word}")


@dramatiq.actor(broker=broker, actor_name="life.hold_the_lock", queue_name="default")
def hold_the_lock(word: str, seconds: float) -> None:
    note(f"start-{word}")
    ctypes.PyDLL(None).usleep(
        int(seconds * 1_000_000)
    )  # a PyDLL keeps the interpreter's lock: no thread runs meanwhile
    note(f"end-{word}")
