"""A process's own probe: `GET /livez` says that it runs, `GET /readyz` whether it can do its work.

Served from a thread of its own, so that busy jobs don't keep it from answering. Liveness never asks Redis: a restart
does not mend an outage.
"""

import contextlib
import errno
import json
import logging
import os
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Thread

from service.errors import SettingsError
from service.observe.overdue import overdue_jobs

logger = logging.getLogger(__name__)

PORTS_TRIED = 100


def check_host(host: str) -> None:
    """Raise SettingsError for an address of probes that can't be resolved."""
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise _wrong_host(host, error) from None


class Probe:
    """Answers on `port`, or on the next free one. `is_ready` is called for each request and must not block.

    `metrics` gives what `GET /metrics` answers, in the text format of Prometheus; without it there is no such path.

    Raises SettingsError where the host is not one of this machine.
    """

    def __init__(
        self, host: str, port: int, is_ready: Callable[[], bool], metrics: Callable[[], bytes] | None = None
    ) -> None:
        self._server = _listen(host, port, is_ready, metrics)
        self.port = int(self._server.server_address[1])
        if self.port != port:
            logger.warning("Port %s is taken: the probes of this process answer on %s", port, self.port)

    def start(self) -> None:
        """Serve until the process ends."""
        self._announce()
        Thread(target=self._server.serve_forever, name="probe", daemon=True).start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        if announcement := _announcement():
            announcement.unlink(missing_ok=True)

    def _announce(self) -> None:
        """Tell the processes of this machine where it answers, which need not be the port it was given."""
        if announcement := _announcement():
            # The folder may have been deleted; who asks then still has the port that was given.
            with contextlib.suppress(OSError):
                announcement.write_text(f"{self.port}\n", encoding="utf-8")


def _announcement() -> Path | None:
    folder = os.environ.get("CALLBOARD_RUN_DIR")
    return Path(folder) / f"{os.getpid()}.port" if folder else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Two processes of one worker must not share a port: each answers for itself.
    allow_reuse_port = False
    # Above the standard 5: a connection beyond it would wait for a second.
    request_queue_size = 128

    def server_bind(self) -> None:
        # HTTPServer would ask the DNS for this host's name here, which takes seconds where no DNS answers.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def _listen(
    host: str, port: int, is_ready: Callable[[], bool], metrics: Callable[[], bytes] | None
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path == "/livez":
                self._answer(200, "alive", **_findings())
            elif self.path == "/readyz":
                ready = is_ready()
                self._answer(200 if ready else 503, "ready" if ready else "not ready", **_findings())
            elif self.path == "/metrics" and metrics is not None:
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
            else:
                self._answer(404, "unknown path")

        def _answer(self, status: int, text: str, **findings: int) -> None:
            self._send(status, "application/json", json.dumps({"status": text, **findings}).encode())

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            logger.debug(format, *args)

    for candidate in range(port, min(port + PORTS_TRIED, 65536)):
        try:
            return _Server((host, candidate), Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise _wrong_host(host, error) from None  # no port will do
            logger.debug("Port %s: %s", candidate, error)
    return _Server((host, 0), Handler)


def _findings() -> dict[str, int]:
    """What is wrong in this process and does not make it dead or unready."""
    return {"overdue_jobs": overdue_jobs.now} if overdue_jobs.now else {}


def _wrong_host(host: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"CALLBOARD_WORKER_HOST={host!r} is wrong: {error}; for example: CALLBOARD_WORKER_HOST=0.0.0.0"
    )
