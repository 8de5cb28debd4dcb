"""Asks processes whether they are ready, each in a thread of its own, so that a slow answer holds up nobody."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from service.observe.run_dir import announced

INTERVAL_SECONDS = 0.05

logger = logging.getLogger(__name__)


class Readiness:
    """What has become ready so far."""

    def __init__(self) -> None:
        self._ready: dict[str, threading.Event] = {}
        self._given_up = threading.Event()

    def watch(self, name: str, probe: Callable[[], bool]) -> None:
        """Ask until the answer is yes."""
        ready = self._ready[name] = threading.Event()
        threading.Thread(target=self._ask, args=(name, probe, ready), name=f"ready-{name}", daemon=True).start()

    def missing(self) -> list[str]:
        """Return the names of what is not ready yet."""
        return [name for name, ready in self._ready.items() if not ready.is_set()]

    def give_up(self) -> None:
        """Ask no more."""
        self._given_up.set()

    def _ask(self, name: str, probe: Callable[[], bool], ready: threading.Event) -> None:
        began = time.monotonic()
        while not self._given_up.wait(INTERVAL_SECONDS):
            if probe():
                logger.info("%s is ready, %.1f s after its start", name, time.monotonic() - began)
                ready.set()
                return


def announced_port(folder: Path, group_id: int | None) -> int | None:
    """Return the port on which a process of this group says that it answers (see observe/probe.py)."""
    for pid, text in announced(folder, "port"):
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(pid) == group_id:
                return int(text)
    return None


def answers_ready(host: str, port: int, timeout_seconds: float = 2.0) -> bool:
    """Say whether `GET /readyz` is answered with 200."""
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"\r\n" not in answer and (chunk := connection.recv(256)):
                answer += chunk
    except OSError:
        return False
    return answer.split(b"\r\n")[0].split(b" ")[1:2] == [b"200"]
