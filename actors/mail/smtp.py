"""The bytes of one mail go to the SMTP server, over a connection of their own."""

import smtplib
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from actors.mail.message import Mail
from actors.mail.replies import MailRefusedForNow, printable, refusal, secrets_of
from actors.mail.rules import ascii_domain
from service.job import Permanent

#: How long a server may take to say goodbye. The mail is out by then, or refused.
QUIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Where mail goes, and how."""

    host: str
    port: int
    security: Literal["none", "starttls", "tls"] = "none"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_seconds: float = 30.0


def deliver(mail: Mail, server: SmtpServer) -> None:
    """Return once the server has taken the mail. Raises MailRefusedForNow or Permanent."""
    with _step(server, "connect"):
        client = _connect(server, ascii_domain(mail.sender.rpartition("@")[2]))
    try:
        _open_session(client, server)
        _hand_over(client, mail, server)
    finally:
        _leave(client)


def _connect(server: SmtpServer, hello_name: str) -> smtplib.SMTP:
    # With no name given, smtplib asks the resolver for one, for as long as that takes.
    if server.security == "tls":
        return smtplib.SMTP_SSL(
            server.host, server.port, hello_name, timeout=server.timeout_seconds, context=ssl.create_default_context()
        )
    return smtplib.SMTP(server.host, server.port, hello_name, timeout=server.timeout_seconds)


def _open_session(client: smtplib.SMTP, server: SmtpServer) -> None:
    with _step(server, "EHLO"):
        client.ehlo_or_helo_if_needed()
    if server.security == "starttls":
        with _step(server, "STARTTLS"):
            client.starttls(context=ssl.create_default_context())
        with _step(server, "EHLO"):
            client.ehlo_or_helo_if_needed()
    if server.username is not None:
        with _step(server, "AUTH"):
            _log_in(client, server.username, server.password or "")


def _log_in(client: smtplib.SMTP, username: str, password: str) -> None:
    try:
        client.login(username, password)
    except UnicodeError:
        # The error would carry the password with it.
        raise Permanent("SMTP user name or password holds characters outside ASCII, which can't be sent") from None


def _hand_over(client: smtplib.SMTP, mail: Mail, server: SmtpServer) -> None:
    options = [f"size={len(mail.content)}"] if client.has_extn("size") else []
    if mail.utf8:
        options += ["SMTPUTF8", "BODY=8BITMIME"]
    with _step(server, "MAIL FROM"):
        _wanted(client.mail(mail.sender, options))
    with _step(server, "RCPT TO"):
        _wanted(client.rcpt(mail.recipient))
    with _step(server, "DATA"):
        _wanted(client.data(mail.content))


def _wanted(reply: tuple[int, bytes]) -> None:
    code, text = reply
    if not 200 <= code <= 299:
        raise smtplib.SMTPResponseException(code, text)


@contextmanager
def _step(server: SmtpServer, name: str) -> Generator[None]:
    """Turn what smtplib raises into our two outcomes. Its own errors hold unbounded replies, so they are cut off."""
    where = f"SMTP server {server.host}:{server.port} at {name}"
    secrets = secrets_of(server.username, server.password)
    try:
        yield
    except smtplib.SMTPResponseException as error:
        raise refusal(where, error.smtp_code, error.smtp_error, secrets) from None
    except smtplib.SMTPServerDisconnected as error:
        raise MailRefusedForNow(f"{where}: {printable(str(error), secrets)}") from None
    except smtplib.SMTPException as error:
        # It lacks what we need: STARTTLS, SMTPUTF8, or a way to log in that we know.
        raise Permanent(f"{where}: {printable(str(error), secrets)}") from None
    except OSError as error:
        raise MailRefusedForNow(f"{where}: {type(error).__name__}: {printable(str(error), secrets)}") from error


def _leave(client: smtplib.SMTP) -> None:
    # Whatever happens now, the server has taken the mail or refused it: goodbye can't change the outcome.
    with suppress(smtplib.SMTPException, OSError):
        if client.sock is not None:
            client.sock.settimeout(QUIT_SECONDS)
        client.quit()
    client.close()
