"""A process's own probe: `GET /livez` says that it runs, `GET /readyz` whether it can do its work.

Served from a thread of its own, so that busy jobs don't keep it from answering. Liveness never asks Redis: a restart
does not mend an outage. What changes the process is asked for by POST, with a secret that only its machine knows.
"""

import errno
import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import compare_digest
from socketserver import TCPServer
from threading import Thread
from typing import Any

from service.errors import SettingsError
from service.observe import run_dir
from service.observe.overdue import overdue_jobs

logger = logging.getLogger(__name__)

PORTS_TRIED = 100


def check_host(host: str) -> None:
    """Raise SettingsError for an address of probes that can't be resolved."""
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise _wrong_host(host, error) from None


def _yes() -> bool:
    return True


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a process says of itself. Each is called for each request, and must not block.

    findings: what else is to be known of it, beside whether it is alive or ready. `status`, where given, says why it is
    not ready. metrics: what `GET /metrics` answers, in the text format of Prometheus; without it there is no such path.
    acts: what `POST` of a path does, and answers, for who says `secret`.
    """

    is_ready: Callable[[], bool]
    is_alive: Callable[[], bool] = _yes
    findings: Callable[[], Mapping[str, Any]] = _nothing
    metrics: Callable[[], bytes] | None = None
    acts: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict[str, Any])
    secret: str = ""


class Probe:
    """Answers on `port`, or on the next free one.

    Raises SettingsError where the host is not one of this machine.
    """

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        self._server = _listen(host, port, answers)
        self.port = int(self._server.server_address[1])
        if self.port != port:
            logger.warning("Port %s is taken: the probes of this process answer on %s", port, self.port)

    def start(self) -> None:
        """Serve until the process ends."""
        # To the processes of this machine: it need not be the port that it was given.
        run_dir.announce("port", f"{self.port}\n")
        Thread(target=self._server.serve_forever, name="probe", daemon=True).start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        run_dir.withdraw("port")


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


def _listen(host: str, port: int, answers: Answers) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path == "/livez":
                alive = answers.is_alive()
                self._answer(200 if alive else 503, {"status": "alive" if alive else "stuck", **_overdue()})
            elif self.path == "/readyz":
                ready = answers.is_ready()
                findings = {**answers.findings(), **_overdue()}
                self._answer(200 if ready else 503, {"status": "ready" if ready else "not ready", **findings})
            elif self.path == "/metrics" and answers.metrics is not None:
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", answers.metrics())
            else:
                self._answer(404, {"status": "unknown path"})

        def do_POST(self) -> None:
            act = answers.acts.get(self.path)
            # Compared as bytes: a header may hold anything.
            said = self.headers.get("Authorization", "").encode(errors="replace")
            if act is None:
                self._answer(404, {"status": "unknown path"})
            elif not answers.secret or not compare_digest(said, f"Bearer {answers.secret}".encode()):
                self._answer(403, {"status": "not allowed"})
            else:
                self._answer(200, act())

        def _answer(self, status: int, body: Mapping[str, Any]) -> None:
            self._send(status, "application/json", json.dumps(body).encode())

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


def _overdue() -> dict[str, int]:
    """What is wrong in this process and does not make it dead or unready."""
    return {"overdue_jobs": overdue_jobs.now} if overdue_jobs.now else {}


def _wrong_host(host: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"CALLBOARD_WORKER_HOST={host!r} is wrong: {error}; for example: CALLBOARD_WORKER_HOST=0.0.0.0"
    )
