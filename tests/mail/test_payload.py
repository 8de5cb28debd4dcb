"""What `email.send` takes, and how it travels."""

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from actors.email import send_email
from actors.mail.payload import MAX_ATTACHMENTS_BYTES, Attachment, EmailJobPayload
from service.errors import PayloadError

ALL_BYTES = bytes(range(256)) * 3


def full(fields: dict[str, Any]) -> EmailJobPayload:
    more = {"ref_id": "order-1", "from_name": "Shop", "reply_to": "help@example.net", "headers": {"X-Tag": "a"}}
    attachment = Attachment(filename="a.bin", content_type="application/octet-stream", content=ALL_BYTES)
    return EmailJobPayload(**fields, **more, context={"n": [1, None, {"a": "b\n"}]}, attachments=[attachment])


def test_bytes_survive_json_both_ways(fields: Any) -> None:
    payload = full(fields)
    document = payload.model_dump(mode="json")
    assert EmailJobPayload.model_validate(json.loads(json.dumps(document))) == payload
    assert EmailJobPayload.model_validate_json(payload.model_dump_json()) == payload
    assert EmailJobPayload.model_validate(payload.model_dump()) == payload


def test_the_message_carries_the_same_object_that_the_api_takes(fields: Any) -> None:
    sent = send_email.message(full(fields)).kwargs
    assert sent == send_email.message_from_json(json.loads(json.dumps(sent))).kwargs
    assert send_email.queue_name == "email"
    assert send_email.broker.get_actor("send-email") is send_email


@pytest.mark.parametrize("content", ["not base64!", "YQ", "YQ==\n", "é"])
def test_what_is_not_base64_is_refused(content: str, fields: Any, a_file: Any) -> None:
    with pytest.raises(ValidationError, match=r"attachments.0.content\n.*base64"):
        EmailJobPayload(**{**fields, "attachments": [{**a_file, "content": content}]})


def test_attachments_have_a_limit_together(fields: Any, a_file: Any) -> None:
    half = Attachment(filename="a", content_type="text/plain", content=b"x" * (MAX_ATTACHMENTS_BYTES // 2))
    EmailJobPayload(**fields, attachments=[half, half])
    for too_many in ([half, half, Attachment(**a_file)], [a_file] * 11):
        with pytest.raises(ValidationError, match="attachments"):
            EmailJobPayload(**fields, attachments=too_many)


def test_headers_have_a_limit_and_one_spelling(fields: Any) -> None:
    for headers in ({f"X-{n}": "" for n in range(26)}, {"X-Tag": "1", "x-tag": "2"}):
        with pytest.raises(ValidationError, match="headers"):
            EmailJobPayload(**fields, headers=headers)


def test_a_subject_may_have_998_characters(fields: Any) -> None:
    EmailJobPayload(**{**fields, "subject": "ü" * 998})
    with pytest.raises(ValidationError, match="subject"):
        EmailJobPayload(**{**fields, "subject": "ü" * 999})


@pytest.mark.parametrize("more", [{"unknown": 1}, {"context": {"a": {"b": "\ud800"}}}, {"context": {"a": object()}}])
def test_what_no_mail_can_carry_is_refused(more: Any, fields: Any) -> None:
    with pytest.raises(ValidationError):
        EmailJobPayload(**fields, **more)


def test_an_unknown_template_is_refused_with_the_known_ones(fields: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        send_email.message_from_json({**fields, "template_id": "welcom"})
    ((path, message),) = caught.value.problems
    assert path == "template_id"
    assert "known templates: notification, order-confirmation, password-reset, welcome" in message


@pytest.mark.parametrize("value", ["../welcome", "_layout", "Welcome", "", "a" * 65, "welcome.txt"])
def test_a_template_id_is_no_path(value: str, fields: Any) -> None:
    with pytest.raises(ValidationError, match="template_id"):
        EmailJobPayload(**{**fields, "template_id": value})


def test_the_folder_in_the_settings_holds_the_templates(fields: Any, settings: Any, tmp_path: Any) -> None:
    (tmp_path / "invoice.txt.j2").write_text("Hello")
    settings(CALLBOARD_MAIL_TEMPLATES=tmp_path)
    EmailJobPayload(**{**fields, "template_id": "invoice"})
    with pytest.raises(ValidationError, match="known templates: invoice"):
        EmailJobPayload(**fields)


def test_importing_and_sending_need_no_jinja_and_start_nothing() -> None:
    code = """
import sys, threading, socket
def forbidden(*_): raise AssertionError("a connection was opened")
socket.socket.connect = forbidden
sys.modules["jinja2"] = None
import actors.email, actors.mail.rendering, actors.mail.smtp
payload = actors.email.EmailJobPayload(to="ann@example.org", subject="Hello", template_id="welcome")
actors.email.send_email.message(payload)
assert threading.active_count() == 1, threading.enumerate()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
