"""Case 01-O25: line breaks in mail fields add neither headers nor SMTP commands."""

from typing import Any

import pytest
from pydantic import ValidationError

from actors.email import send_email
from actors.mail.message import build
from actors.mail.payload import Attachment, EmailJobPayload
from actors.mail.rendering import Rendered
from service.errors import PayloadError
from service.job import Permanent

JOB_ID = "0192f0c1-2345-7000-8000-000000000001"

BREAKS = ["\r\n", "\n", "\r", "\0", "\t", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\ud800"]
HOSTILE = ["x\r\nBcc: y@example.org", *(f"x{character}y" for character in BREAKS), *(f"x{c}" for c in BREAKS)]
# Encoded words, which the standard library decodes, also where the end is missing.
HOSTILE += ["=?utf-8?q?x=0D=0ABcc:_y=40example.org?=", "=?utf-8?q?=0D=0ABcc:_y", "a=?us-ascii?b?DQpCY2M6?="]


def placed(path: str, value: str, a_file: dict[str, str]) -> dict[str, Any]:
    """Put a value where a path says."""
    match path.split("."):
        case ["headers", "name"]:
            return {"headers": {value: "1"}}
        case ["headers", name]:
            return {"headers": {name: value}}
        case ["attachments", "0", name]:
            return {"attachments": [{**a_file, name: value}]}
        case _:
            return {path: f"{value}@example.org" if path in ("to", "reply_to") else value}


PATHS = ["subject", "from_name", "to", "reply_to", "template_id", "headers.X-Tag", "headers.name"]
PATHS += ["attachments.0.filename", "attachments.0.content_type"]


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize("path", PATHS)
def test_each_field_is_refused_with_its_path(path: str, value: str, fields: Any, a_file: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        EmailJobPayload(**{**fields, **placed(path, value, a_file)})
    (problem,) = caught.value.errors()
    assert ".".join(map(str, problem["loc"])) == path.removesuffix(".name")


@pytest.mark.parametrize("value", ["ann@example.org\r\nRCPT TO:<eve@example.org>", "ann@example.org\n", "a@b.org\0"])
@pytest.mark.parametrize("path", ["to", "reply_to"])
def test_a_break_after_an_address_is_refused(path: str, value: str, fields: Any) -> None:
    with pytest.raises(ValidationError):
        EmailJobPayload(**{**fields, path: value})


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "template_id"])
def test_the_builder_refuses_what_went_around_the_model(path: str, value: str, fields: Any, a_file: Any) -> None:
    values = {**fields, **placed(path, value, a_file)}
    values["attachments"] = [Attachment.model_construct(**item) for item in values.get("attachments", [])]
    payload = EmailJobPayload.model_construct(**values)
    with pytest.raises(Permanent):
        build(payload, Rendered("text", None), job_id=JOB_ID, sender="shop@example.net")


@pytest.mark.parametrize("sender", ["shop@example.net\r\nBcc: y@example.org", "a b@example.net", "shop"])
def test_the_builder_refuses_a_wrong_sender(sender: str, build_mail: Any) -> None:
    with pytest.raises(Permanent, match="CALLBOARD_MAIL_FROM"):
        build_mail(sender=sender)


def test_the_builder_refuses_a_wrong_job_id(fields: Any) -> None:
    with pytest.raises(Permanent, match="job_id"):
        build(EmailJobPayload(**fields), Rendered("", None), job_id="1\r\nBcc: y@example.org", sender="a@example.net")


@pytest.mark.parametrize("value", HOSTILE[:4], ids=ascii)
@pytest.mark.parametrize("path", PATHS)
def test_the_api_refuses_with_the_path(path: str, value: str, fields: Any, a_file: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        send_email.message_from_json({**fields, **placed(path, value, a_file)})
    (problem,) = caught.value.problems
    assert problem[0] == path.removesuffix(".name")


def test_send_refuses_a_payload_that_went_around_its_model(fields: Any) -> None:
    with pytest.raises(PayloadError, match="subject"):
        send_email.message(EmailJobPayload.model_construct(**{**fields, "subject": "x\r\nBcc: y@example.org"}))


GOOD_ADDRESSES = ["ann@example.org", "o'brien+tag=1@mail.example.co.uk", "a@localhost", "jörg@münchen.example"]
GOOD_ADDRESSES += ["x" * 64 + "@example.org", "ann@xn--mnchen-3ya.example", "ann_b-c@1and1.example"]


@pytest.mark.parametrize("value", GOOD_ADDRESSES)
def test_usual_addresses_are_taken(value: str, fields: Any) -> None:
    assert EmailJobPayload(**{**fields, "to": value}).to == value


BAD_ADDRESSES = ["", "ann", "@example.org", "ann@", "a@b@example.org", "ann@example.org,eve@example.org", "a b@c.org"]
BAD_ADDRESSES += ["Ann <ann@example.org>", "<ann@example.org>", '"ann"@example.org', "ann;eve@example.org", "a@b..org"]
BAD_ADDRESSES += [
    "a..b@example.org",
    ".a@example.org",
    "a@-example.org",
    "a@example.org.",
    "a@[127.0.0.1]",
    "a\\b@c.org",
]
BAD_ADDRESSES += [
    "x" * 65 + "@example.org",
    "a@" + ".".join(["x" * 60] * 5),
    "ann\u202e@example.org",
    "a@exa\uff0emple.org",
]
BAD_ADDRESSES += ["a@b.org>\x20SIZE=1", "a\u3000b@example.org", "ann\u200b@example.org", "ü" * 33 + "@example.org"]


@pytest.mark.parametrize("value", BAD_ADDRESSES, ids=ascii)
def test_anything_but_one_bare_address_is_refused(value: str, fields: Any) -> None:
    with pytest.raises(ValidationError, match="to\n"):
        EmailJobPayload(**{**fields, "to": value})


RESERVED = ["To", "cc", "BCC", "From", "Sender", "Subject", "Date", "Message-ID", "MIME-Version", "Content-Type"]
RESERVED += ["content-anything", "Reply-To", "Return-Path", "Received", "DKIM-Signature", "Resent-To", "ARC-Seal"]


@pytest.mark.parametrize("name", [*RESERVED, "X-Job-ID", "", "X Tag", "X-Tag:", "X-Täg", "X" * 77])
def test_header_names_that_are_not_the_senders_are_refused(name: str, fields: Any) -> None:
    with pytest.raises(ValidationError, match="headers"):
        EmailJobPayload(**{**fields, "headers": {name: "1"}})


@pytest.mark.parametrize("value", ["../a.txt", "a/b", "a\\b", 'a"b', "", ".", "..", " ", "x" * 201])
def test_a_file_name_is_a_name(value: str, fields: Any, a_file: Any) -> None:
    with pytest.raises(ValidationError, match=r"attachments.0.filename"):
        EmailJobPayload(**{**fields, "attachments": [{**a_file, "filename": value}]})


@pytest.mark.parametrize("value", ["text", "text/", "multipart/mixed", "message/rfc822", "text/plain; charset=x"])
def test_a_content_type_is_one_of_a_single_file(value: str, fields: Any, a_file: Any) -> None:
    with pytest.raises(ValidationError, match=r"attachments.0.content_type"):
        EmailJobPayload(**{**fields, "attachments": [{**a_file, "content_type": value}]})
