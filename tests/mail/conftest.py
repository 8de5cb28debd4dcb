"""SMTP servers for the tests: a real one that keeps what arrives, and a scripted one that keeps the wire."""

import base64
import socketserver
import ssl
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from actors.mail.message import build
from actors.mail.payload import EmailJobPayload
from actors.mail.rendering import Rendered
from actors.mail.smtp import SmtpServer
from service.settings import get_settings
from tests.servers import free_port

JOB_ID = "0192f0c1-2345-7000-8000-000000000001"
CERTIFICATE = Path(__file__).with_name("localhost.pem")
DROP = "drop the connection"


class Inbox:
    """The handler of the real server: keeps every envelope, and refuses where a test says so."""

    def __init__(self) -> None:
        self.mails: list[SimpleNamespace] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.port = 0

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        sent_to = list(envelope.rcpt_tos)
        self.mails.append(
            SimpleNamespace(sender=envelope.mail_from, recipients=sent_to, raw=envelope.content, tls=session.ssl)
        )
        return "250 OK"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right", handled=data.password != b"wrong")

    def last(self) -> EmailMessage:
        return message_from_bytes(self.mails[-1].raw, policy=policy.SMTP)  # type: ignore[return-value]


class Script(socketserver.BaseRequestHandler):
    """One connection of the scripted server."""

    def handle(self) -> None:
        server: Any = self.server
        self.file = self.request.makefile("rb")
        with self.file:
            if not self.answer("connect"):
                return
            while line := self.read():
                verb = line.split(b" ")[0].strip().upper().decode("latin-1")
                if not self.answer(verb):
                    return
                if verb == "DATA" and server.reply_to("DATA").startswith("354"):
                    while self.read() not in (b".\r\n", b""):
                        pass
                    if not self.answer("."):
                        return
                if verb == "QUIT":
                    return

    def read(self) -> bytes:
        line = self.file.readline()
        self.server.wire.append(line)  # type: ignore[attr-defined]
        return line

    def answer(self, stage: str) -> bool:
        reply = self.server.reply_to(stage)  # type: ignore[attr-defined]
        if reply.startswith(DROP):
            return False
        self.request.sendall(reply.replace("\n", "\r\n").encode("latin-1") + b"\r\n")
        return stage != self.server.hangs_up_after  # type: ignore[attr-defined]


class ScriptedServer(socketserver.ThreadingTCPServer):
    """Answers each stage with what a test wrote into `replies`, and keeps every line that came in."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Script)
        self.wire: list[bytes] = []
        self.replies: dict[str, str] = {}
        self.hangs_up_after = ""

    def reply_to(self, stage: str) -> str:
        usual = {"connect": "220 here", "DATA": "354 go on", "QUIT": "221 bye", "AUTH": "235 welcome"}
        usual["EHLO"] = "250-here\n250-AUTH PLAIN\n250 SIZE 10000000"
        return self.replies.get(stage, usual.get(stage, "250 fine"))

    def commands(self, verb: str) -> list[bytes]:
        return [line for line in self.wire if line.upper().startswith(verb.encode())]

    def at(self, **options: Any) -> SmtpServer:
        return SmtpServer("127.0.0.1", self.server_address[1], **{"timeout_seconds": 2.0, **options})


@pytest.fixture
def start_smtp() -> Iterator[Any]:
    """Start real SMTP servers, with the options of aiosmtpd."""
    running: list[Controller] = []

    def start(**options: Any) -> Inbox:
        inbox = Inbox()
        inbox.port = free_port()
        if options.pop("login", False):
            options |= {"authenticator": inbox.authenticate, "auth_require_tls": False}
        controller = Controller(inbox, hostname="127.0.0.1", port=inbox.port, **options)
        controller.start()
        running.append(controller)
        return inbox

    yield start
    for controller in running:
        controller.stop()


@pytest.fixture
def inbox(start_smtp: Any) -> Inbox:
    return start_smtp(enable_SMTPUTF8=True)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    import threading

    with ScriptedServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server_certificate() -> ssl.SSLContext:
    """A server's side of TLS, with a certificate for localhost made for these tests only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.fixture
def trust_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Set variables of the environment and read the settings anew."""

    def set_variables(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        get_settings.cache_clear()

    for name in ("TEMPLATES", "FROM"):
        monkeypatch.delenv(f"CALLBOARD_MAIL_{name}", raising=False)
    for name in ("HOST", "PORT", "SECURITY", "USERNAME", "PASSWORD", "TIMEOUT_SECONDS"):
        monkeypatch.delenv(f"CALLBOARD_SMTP_{name}", raising=False)
    set_variables(CALLBOARD_MAIL_FROM="shop@example.net")
    yield set_variables
    get_settings.cache_clear()


@pytest.fixture
def fields() -> dict[str, Any]:
    """The least that a payload needs."""
    return {"to": "ann@example.org", "subject": "Hello", "template_id": "welcome"}


@pytest.fixture
def build_mail(fields: dict[str, Any]) -> Any:
    """Build a mail from fields; `text` and `html` stand for what a template gave."""

    def build_one(text: str = "Hello\n", html: str | None = None, sender: str = "shop@example.net", **more: Any) -> Any:
        payload = EmailJobPayload(**{**fields, **more})
        return build(payload, Rendered(text, html), job_id=JOB_ID, sender=sender)

    return build_one


@pytest.fixture
def a_file() -> dict[str, str]:
    """An attachment in its JSON form."""
    return {
        "filename": "a.txt",
        "content_type": "text/plain",
        "content": base64.b64encode(b"hello").decode(),
    }
