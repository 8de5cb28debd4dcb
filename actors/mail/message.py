"""Payload and rendered parts become the bytes of one message, ready for the wire.

Each value is checked again where it is written: a payload that went around its model still can't add a header line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage

from actors.mail import rules
from actors.mail.payload import EmailJobPayload
from actors.mail.policy import LINE_CHARACTERS, MAIL_POLICY, MAX_LINE_BYTES
from actors.mail.rendering import Rendered
from service.job import Permanent

# Spaces at a line's end are cut off by some servers, so such a line is none of these.
_PLAIN_LINE = re.compile(rf"[ -~]{{0,{LINE_CHARACTERS}}}(?<! )")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)")


@dataclass(frozen=True, slots=True)
class Mail:
    """One message with its envelope: one sender, one recipient. `utf8` asks for a server with SMTPUTF8."""

    sender: str
    recipient: str
    content: bytes
    utf8: bool


def build(payload: EmailJobPayload, parts: Rendered, *, job_id: str, sender: str) -> Mail:
    """Return the message of a job. Raises Permanent where a value may not go into a mail."""
    message = EmailMessage(MAIL_POLICY)
    _write_headers(message, payload, job_id=job_id, sender=sender)
    _write_body(message, payload, parts)
    addresses = [sender, payload.to, payload.reply_to or ""]
    utf8 = not all(address.isascii() for address in addresses)
    content = message.as_bytes(policy=MAIL_POLICY.clone(utf8=utf8))
    _look_once_more(content)
    return Mail(sender=sender, recipient=payload.to, content=content, utf8=utf8)


def message_id(job_id: str, sender: str) -> str:
    """The same for every attempt of a job, so that a mail sent twice can be told by mail servers and readers."""
    return f"<{job_id}@{rules.ascii_domain(sender.rpartition('@')[2])}>"


def _write_headers(message: EmailMessage, payload: EmailJobPayload, *, job_id: str, sender: str) -> None:
    from_name = _checked("from_name", rules.header_text, payload.from_name or "")
    message["From"] = _address("CALLBOARD_MAIL_FROM", sender, from_name)
    message["To"] = _address("to", payload.to)
    if payload.reply_to is not None:
        message["Reply-To"] = _address("reply_to", payload.reply_to)
    message["Subject"] = _checked("subject", rules.header_text, payload.subject)
    message["Date"] = datetime.now(UTC)
    message["Message-ID"] = _checked("job_id", rules.header_text, message_id(job_id, sender))
    message["X-Job-ID"] = _checked("job_id", rules.header_text, job_id)
    for name, value in payload.headers.items():
        checked_name = _checked("headers", rules.header_name, name)
        message[checked_name] = _checked(f"headers.{checked_name}", rules.header_text, value)


def _write_body(message: EmailMessage, payload: EmailJobPayload, parts: Rendered) -> None:
    message.set_content(parts.text, cte=_encoding_of(parts.text))
    if parts.html is not None:
        message.add_alternative(parts.html, subtype="html", cte=_encoding_of(parts.html))
    for index, attachment in enumerate(payload.attachments):
        path = f"attachments.{index}"
        maintype, _, subtype = _checked(f"{path}.content_type", rules.content_type, attachment.content_type).partition(
            "/"
        )
        name = _checked(f"{path}.filename", rules.filename, attachment.filename)
        message.add_attachment(attachment.content, maintype=maintype, subtype=subtype, filename=name)


def _encoding_of(text: str) -> str:
    """Plain short lines go as they are; anything else is encoded, so that no server has to change it."""
    return "7bit" if all(map(_PLAIN_LINE.fullmatch, text.split("\n"))) else "quoted-printable"


def _address(path: str, value: str, name: str = "") -> Address:
    local, _, domain = _checked(path, rules.address, value).rpartition("@")
    return Address(name, local, domain)


def _checked(path: str, rule: Callable[[str], str], value: str) -> str:
    try:
        return rule(value)
    except ValueError as error:
        raise Permanent(f"{path}: {error}") from None


def _look_once_more(content: bytes) -> None:
    # A bare CR or LF is read as a line end by some servers and not by others: the gap that smuggles a second mail.
    if _BARE_LINE_END.search(content) or any(len(line) > MAX_LINE_BYTES for line in content.split(b"\r\n")):
        raise Permanent("The message has a line that SMTP can't carry; this is a defect of the message builder")
