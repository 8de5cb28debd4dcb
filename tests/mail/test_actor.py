"""`email.send` as the worker runs it: JSON in, a mail out."""

from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

import pytest

from actors.email import EmailJobPayload, send_email
from actors.mail.replies import MailRefusedForNow
from service.job import Permanent
from service.middleware import context as job_context

JOB_ID = "0192f0c1-2345-7000-8000-000000000001"


@pytest.fixture
def run(settings: Any) -> Iterator[Any]:
    """Run the job as a worker does, on what a message carries."""

    def run_job(port: int, attempt: int = 1, **fields: Any) -> Any:
        settings(CALLBOARD_SMTP_PORT=port, CALLBOARD_SMTP_TIMEOUT_SECONDS=5)
        message = send_email.message(EmailJobPayload(**fields))
        job_context._current.set(job_context.JobContext(JOB_ID, "email.send", "email", attempt))
        return send_email(**message.kwargs)

    yield run_job
    job_context._current.set(None)


def test_a_job_sends_one_mail_and_says_so(run: Any, inbox: Any, fields: Any, a_file: Any) -> None:
    more = {"context": {"name": "Ann & <Bob>"}, "from_name": "Shop", "reply_to": "help@example.net"}
    result = run(inbox.port, **fields, **more, headers={"X-Tag": "a"}, attachments=[a_file])
    assert result == {"status": "sent", "to": "ann@example.org"}
    (arrived,) = inbox.mails
    assert (arrived.sender, arrived.recipients) == ("shop@example.net", ["ann@example.org"])
    mail = inbox.last()
    assert (mail["To"], mail["From"], mail["Subject"]) == ("ann@example.org", "Shop <shop@example.net>", "Hello")
    assert (mail["Reply-To"], mail["X-Tag"], mail["X-Job-ID"]) == ("help@example.net", "a", JOB_ID)
    assert "Welcome, Ann & <Bob>!" in mail.get_body(("plain",)).get_content()
    assert "Welcome, Ann &amp; &lt;Bob&gt;!" in mail.get_body(("html",)).get_content()
    assert [part.get_content() for part in mail.iter_attachments()] == ["hello"]


def test_every_attempt_has_the_same_message_id(run: Any, scripted: Any, inbox: Any, fields: Any) -> None:
    scripted.replies["."] = "451 later"
    with pytest.raises(MailRefusedForNow, match="at DATA: 451 later"):
        run(scripted.server_address[1], **fields)
    run(inbox.port, attempt=2, **fields)
    first = message_from_bytes(b"".join(scripted.wire).partition(b"data\r\n")[2], policy=policy.SMTP)
    assert first["Message-ID"] == inbox.last()["Message-ID"] == f"<{JOB_ID}@example.net>"


def test_a_refused_recipient_is_permanent(run: Any, scripted: Any, fields: Any) -> None:
    scripted.replies["RCPT"] = "550 5.1.1 no such user"
    with pytest.raises(Permanent, match=r"550 5\.1\.1 no such user"):
        run(scripted.server_address[1], **fields)


def test_a_template_that_went_missing_is_permanent(inbox: Any, fields: Any, settings: Any, tmp_path: Any) -> None:
    settings(CALLBOARD_MAIL_TEMPLATES=tmp_path)
    job_context._current.set(job_context.JobContext(JOB_ID, "email.send", "email", 1, awaits_call=False))
    try:
        with pytest.raises(Permanent, match="'welcome' is gone"):
            send_email(EmailJobPayload.model_construct(**fields))
    finally:
        job_context._current.set(None)
    assert not inbox.mails


def test_it_logs_in_with_what_the_settings_say(run: Any, start_smtp: Any, fields: Any, settings: Any) -> None:
    inbox = start_smtp(login=True)
    settings(CALLBOARD_SMTP_USERNAME="bob", CALLBOARD_SMTP_PASSWORD="right")
    run(inbox.port, **fields)
    assert inbox.logins == [(b"bob", b"right")]
