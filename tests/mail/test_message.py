"""What goes over the wire is what was asked for, and no more."""

import re
from contextlib import suppress
from email import message_from_bytes, message_from_string, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.mail.message import Mail, build, message_id
from actors.mail.payload import Attachment, EmailJobPayload
from actors.mail.policy import MAIL_POLICY
from actors.mail.rendering import Rendered
from actors.mail.smtp import SmtpServer, deliver
from service.job import Permanent

JOB_ID = "0192f0c1-2345-7000-8000-000000000001"


def parsed(mail: Mail) -> EmailMessage:
    return message_from_bytes(mail.content, policy=policy.SMTP)  # type: ignore[return-value]


def sender_name(mail: Mail) -> str:
    """Read by the older parser: the newer one puts spaces between the encoded words of a name."""
    ((name, sender),) = getaddresses([message_from_bytes(mail.content, policy=policy.compat32)["From"]])
    assert sender == "shop@example.net"
    return str(make_header(decode_header(name)))


def header_names(content: bytes) -> list[str]:
    """The names of the header lines as a server sees them: what no space starts."""
    block = content.split(b"\r\n\r\n")[0]
    return [line.split(b":")[0].decode().lower() for line in block.split(b"\r\n") if not line.startswith(b" ")]


def body(mail: Mail, kind: str = "plain") -> str:
    part = parsed(mail).get_body((kind,))
    assert part is not None
    return part.get_content().replace("\r\n", "\n")


HARD_BODIES = {
    "one dot": "first\n.\nlast\n",
    "dots first and last": ".\n..\n...\n.\n",
    "2,000 characters": "x" * 2000 + "\n" + "y z" * 700 + "\n" + "ü" * 2000 + "\n",
    "spaces at line ends": "a \nb\t\n-- \n",
    "From": "From here\n>From there\n",
    "soft breaks": "=\n=20\n=3D=\n",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n",
    "emoji and NUL": "👩‍👩‍👧\0\n",
    "blank": "\n\n\n",
    "bare": "",
}


@pytest.mark.parametrize("text", HARD_BODIES.values(), ids=HARD_BODIES.keys())
def test_a_body_arrives_unchanged(text: str, build_mail: Any, inbox: Any) -> None:
    mail = build_mail(text=text, html=f"<p>{text}</p>")
    deliver(mail, SmtpServer("127.0.0.1", inbox.port))
    arrived = Mail(mail.sender, mail.recipient, inbox.mails[-1].raw, mail.utf8)
    # A text without a line end at its end gets one: a mail's last line has to end.
    assert body(arrived) == (text if text.endswith("\n") else text + "\n")
    assert body(arrived, "html") == f"<p>{text}</p>\n"
    assert max(map(len, arrived.content.split(b"\r\n"))) <= 998
    assert inbox.mails[-1].recipients == ["ann@example.org"]


@pytest.mark.parametrize("text", ["a\rb\r\nc\nd\r"])
def test_line_ends_of_any_kind_become_line_ends(text: str, build_mail: Any) -> None:
    assert body(build_mail(text=text)) == "a\nb\nc\nd\n"


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.one_of(st.sampled_from(".=\n x?_ü\t"), st.characters(exclude_categories=["Cs"]))))
def test_any_body_arrives_unchanged(text: str) -> None:
    mail = build(payload_of(), Rendered(text, None), job_id=JOB_ID, sender="shop@example.net")
    wanted = re.sub("\r\n?", "\n", text)
    assert body(mail) == (wanted if wanted.endswith("\n") else wanted + "\n")


SUBJECTS = [
    "Grüße aus Köln",
    "日本語の件名" * 40,
    "x" * 998,
    "ü" * 998,
    "a  b   c",
    "100% =? ?= 'x' \"y\" <z@q.r>, Bcc: b",
]


@pytest.mark.parametrize("subject", [*SUBJECTS, " both ends ", "👩‍👩‍👧 family", "word " * 199])
def test_a_subject_arrives_unchanged(subject: str, build_mail: Any) -> None:
    mail = build_mail(subject=subject)
    assert str(parsed(mail)["Subject"]).strip(" ") == subject.strip(" ")
    assert mail.content.isascii()


@pytest.mark.parametrize(
    "name", ["Jörg Müller", "Doe, John", 'The "Shop"', "株式会社" * 12, "x@y.z", "a;b:c", "ü" * 200]
)
def test_a_sender_name_arrives_unchanged(name: str, build_mail: Any) -> None:
    assert sender_name(build_mail(from_name=name)) == name


def test_links_and_ids_in_headers_stay_whole(build_mail: Any) -> None:
    link = f"<https://example.org/{'a' * 300}>, <mailto:stop@example.org>"
    mail = build_mail(headers={"List-Unsubscribe": link, "X-Note": "schön " * 60}, sender=f"a@{'b' * 60}.example.org")
    assert f"<https://example.org/{'a' * 300}>".encode() in mail.content
    assert str(parsed(mail)["X-Note"]).strip() == ("schön " * 60).strip()
    assert f"Message-ID: <{JOB_ID}@{'b' * 60}.example.org>\r\n".encode() in mail.content


def test_the_message_id_is_the_same_for_every_attempt(build_mail: Any) -> None:
    ids = {str(parsed(build_mail())["Message-ID"]) for _ in range(3)}
    assert ids == {f"<{JOB_ID}@example.net>"}
    assert message_id("1", "a@münchen.example") == "<1@xn--mnchen-3ya.example>"


def test_text_html_and_files_stand_in_the_usual_order(build_mail: Any, a_file: Any) -> None:
    name = "Grüße & co, (1); v=2.txt"
    message = parsed(build_mail(html="<p>ü</p>", attachments=[a_file, {**a_file, "filename": name}]))
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed", "multipart/alternative", "text/plain", "text/html", "text/plain", "text/plain",
    ]  # fmt: skip
    files = list(message.iter_attachments())
    assert [file.get_filename() for file in files] == ["a.txt", name]
    assert [file.get_payload(decode=True) for file in files] == [b"hello", b"hello"]
    assert message["Date"].datetime.tzinfo is not None


def test_a_line_that_smtp_cant_carry_is_never_sent(build_mail: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmailMessage, "as_bytes", lambda *_, **__: b"Subject: x\r\n\r\na\n.\nb\r\n")
    with pytest.raises(Permanent, match="SMTP can't carry"):
        build_mail()


def test_a_header_that_decodes_to_a_line_break_is_never_written() -> None:
    message = EmailMessage(MAIL_POLICY)
    message["Subject"] = "=?utf-8?q?=0D=0ABcc:_y=40example.org?="
    with pytest.raises(Permanent, match="Subject"):
        message.as_bytes()


# What a hostile or unlucky caller may write, dense in the characters that matter.
CHARACTERS = st.one_of(
    st.sampled_from("\r\n\0\t \u2028\u2029\x85,;:<>@\"'()[]\\=?_.-aBü\u202e日"),
    st.characters(exclude_categories=["Cs"]),
)
PIECES = st.sampled_from(["\r\nBcc: y@example.org", "=?utf-8?q?", "=0D=0A", "?=", "=?utf-8?b?DQpCY2M6?=", "Bcc:", " "])
HOSTILE = st.lists(st.one_of(PIECES, st.text(CHARACTERS, max_size=30)), max_size=5).map("".join)
MILD = st.text(st.one_of(st.sampled_from("  ,;:<>@\"'()[]=?_.-aBü日👩"), st.characters(categories=["L", "P", "S"])))
ANY = st.one_of(HOSTILE, MILD)
LOCAL = st.text(st.sampled_from("abc.+-_'=?!#$%&*/^`{|}~ü<>, \"\r\n"), min_size=1, max_size=20)
ADDRESS = st.builds("{}@{}".format, LOCAL, st.sampled_from(["example.org", "a.b", "münchen.example", "x\r\n", "a,b"]))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "to": ADDRESS,
    "subject": ANY,
    "from_name": ANY,
    "reply_to": ADDRESS,
    "headers": st.dictionaries(st.one_of(st.sampled_from(["X-Tag", "List-Unsubscribe", "References"]), ANY), ANY),
    "attachments": st.lists(
        st.fixed_dictionaries({"filename": ANY, "content_type": st.just("text/plain"), "content": st.just("")}),
        max_size=2,
    ),
}  # fmt: skip


def accepted(field_name: str, value: Any) -> bool:
    with suppress(ValidationError):
        payload_of(**{field_name: value})
        return True
    return False


def payload_of(**fields: Any) -> EmailJobPayload:
    return EmailJobPayload(**{"to": "ann@example.org", "subject": "Hello", "template_id": "welcome", **fields})


def expected_names(fields: dict[str, Any]) -> list[str]:
    names = ["from", "to", "subject", "date", "message-id", "x-job-id", "mime-version", "content-type"]
    names += [] if fields.get("attachments") else ["content-transfer-encoding"]
    names += ["reply-to"] if "reply_to" in fields else []
    return sorted([*names, *(name.lower() for name in fields.get("headers", {}))])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.fixed_dictionaries({}, optional=FIELDS))
def test_no_accepted_payload_adds_a_header_or_a_recipient(inbox: Any, values: dict[str, Any]) -> None:
    # Field by field, so that one refused field does not hide what the others do.
    fields = {name: value for name, value in values.items() if accepted(name, value)}
    payload = payload_of(**fields)
    mail = build(payload, Rendered("text\n", None), job_id=JOB_ID, sender="shop@example.net")
    deliver(mail, SmtpServer("127.0.0.1", inbox.port))
    arrived = inbox.mails.pop()
    assert arrived.recipients == [payload.to]
    assert arrived.sender == "shop@example.net"
    assert sorted(header_names(arrived.raw)) == expected_names(fields)
    message = message_from_string(arrived.raw.decode(), policy=policy.SMTP)
    assert str(message["Subject"]).strip(" ") == payload.subject.strip(" ")
    (sender,) = message["From"].addresses
    assert sender.addr_spec == "shop@example.net"
    (recipient,) = message["To"].addresses
    assert recipient.addr_spec == payload.to


@settings(max_examples=300, deadline=None)
@given(name=ANY)
def test_any_accepted_name_arrives_whole(name: str) -> None:
    if not accepted("from_name", name):
        return
    mail = build(payload_of(from_name=name), Rendered("", None), job_id=JOB_ID, sender="shop@example.net")
    assert sender_name(mail).split() == name.split()


@settings(max_examples=300, deadline=None)
@given(name=ANY)
def test_any_accepted_file_name_arrives_whole(name: str) -> None:
    with suppress(ValidationError):
        file = Attachment(filename=name, content_type="text/plain", content=b"x")
        mail = build(payload_of(attachments=[file]), Rendered("", None), job_id=JOB_ID, sender="shop@example.net")
        (arrived,) = parsed(mail).iter_attachments()
        assert (arrived.get_filename() or "").strip() == name.strip()
        assert len(header_names(mail.content)) == len(expected_names({"attachments": [file]}))
