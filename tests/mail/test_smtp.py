"""What becomes of a mail that the server takes, refuses, or never answers."""

import re
import time
from typing import Any

import pytest

from actors.mail.replies import MailRefusedForNow
from actors.mail.smtp import SmtpServer, deliver
from service.job import Permanent

STAGES = ["connect", "MAIL", "RCPT", "DATA", "."]
# Where the server answers with code 4xx or 5xx, the outcome follows the code and nothing else.
OUTCOMES = {"421": MailRefusedForNow, "450": MailRefusedForNow, "550": Permanent, "554": Permanent}


@pytest.fixture
def mail(build_mail: Any) -> Any:
    return build_mail(text="first\n.\n..last\n")


@pytest.mark.parametrize("code", OUTCOMES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_refusal_is_for_now_or_for_good(stage: str, code: str, scripted: Any, mail: Any) -> None:
    scripted.replies[stage] = f"{code} not today"
    with pytest.raises(OUTCOMES[code], match=rf"127.0.0.1:\d+ at .*: {code} not today$") as caught:
        deliver(mail, scripted.at())
    assert isinstance(caught.value, Permanent) or caught.value.code == int(code)  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["450", "550"])
def test_a_refused_hello_follows_the_same_rule(code: str, scripted: Any, mail: Any) -> None:
    scripted.replies |= {"EHLO": f"{code} no", "HELO": f"{code} no"}
    with pytest.raises(OUTCOMES[code], match=f"at EHLO: {code} no"):
        deliver(mail, scripted.at())


def test_a_server_that_knows_only_helo_is_fine(scripted: Any, mail: Any) -> None:
    scripted.replies["EHLO"] = "502 what?"
    deliver(mail, scripted.at())


@pytest.mark.parametrize(("code", "outcome"), [("454", MailRefusedForNow), ("535", Permanent), ("534", Permanent)])
def test_a_refused_login_never_shows_the_password(code: str, outcome: Any, scripted: Any, mail: Any) -> None:
    scripted.replies["AUTH"] = f"{code} bad: AGJvYgBodW50ZXIy hunter2"
    with pytest.raises(outcome) as caught:
        deliver(mail, scripted.at(username="bob", password="hunter2"))
    assert "hunter2" not in str(caught.value)
    assert "AGJvYgBodW50ZXIy" not in str(caught.value)
    assert f"at AUTH: {code} bad: *** ***" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert not scripted.commands("MAIL")


def test_the_password_is_in_no_repr() -> None:
    assert "hunter2" not in repr(SmtpServer("h", 25, username="bob", password="hunter2"))


def test_a_password_outside_ascii_is_permanent_and_not_shown(scripted: Any, mail: Any) -> None:
    with pytest.raises(Permanent, match="outside ASCII") as caught:
        deliver(mail, scripted.at(username="bob", password="hünter2"))
    assert "nter2" not in str(caught.value)


@pytest.mark.parametrize("stage", ["connect", "EHLO", "MAIL", "RCPT", "DATA", "."])
def test_a_lost_connection_is_retried(stage: str, scripted: Any, mail: Any) -> None:
    scripted.replies[stage] = "drop the connection"
    with pytest.raises(MailRefusedForNow, match=r"SMTP server 127.0.0.1"):
        deliver(mail, scripted.at())


def test_a_server_that_is_not_there_is_retried(mail: Any, scripted: Any) -> None:
    server = SmtpServer("127.0.0.1", 1, timeout_seconds=2.0)
    with pytest.raises(MailRefusedForNow, match=r"127.0.0.1:1 at connect: ConnectionRefusedError"):
        deliver(mail, server)
    with pytest.raises(MailRefusedForNow, match="at connect: gaierror"):
        deliver(mail, SmtpServer("smtp.invalid", 25))


@pytest.mark.parametrize("stage", ["connect", "MAIL", "DATA", "."])
def test_a_silent_server_is_given_up_in_time(stage: str, scripted: Any, mail: Any, monkeypatch: Any) -> None:
    reply_to = scripted.reply_to
    monkeypatch.setattr(scripted, "reply_to", lambda at: (time.sleep(5.0) if at == stage else None) or reply_to(at))
    started = time.monotonic()
    with pytest.raises(MailRefusedForNow):
        deliver(mail, scripted.at(timeout_seconds=0.2))
    assert time.monotonic() - started < 4.0


@pytest.mark.parametrize("reply", ["drop the connection", "421 too late", "550 no"])
def test_what_happens_at_quit_does_not_matter(reply: str, scripted: Any, mail: Any) -> None:
    scripted.replies["QUIT"] = reply
    deliver(mail, scripted.at())


def test_a_server_that_takes_the_mail_and_hangs_up_has_taken_it(scripted: Any, mail: Any) -> None:
    scripted.hangs_up_after = "."
    deliver(mail, scripted.at())


def test_a_silent_goodbye_costs_seconds_at_most(scripted: Any, mail: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("actors.mail.smtp.QUIT_SECONDS", 0.1)
    reply_to = scripted.reply_to
    monkeypatch.setattr(scripted, "reply_to", lambda at: (time.sleep(5.0) if at == "QUIT" else None) or reply_to(at))
    started = time.monotonic()
    deliver(mail, scripted.at(timeout_seconds=30.0))
    assert time.monotonic() - started < 4.0


def test_a_reply_in_an_error_is_short_and_in_one_line(scripted: Any, mail: Any) -> None:
    scripted.replies["RCPT"] = "550-first\x1b[31m\n550 " + "x" * 2000
    with pytest.raises(Permanent) as caught:
        deliver(mail, scripted.at())
    assert re.search(r"at RCPT TO: 550 first\\x1b\[31m / x+\.\.\.$", str(caught.value))
    assert len(str(caught.value)) < 700


def test_nonsense_is_retried(scripted: Any, mail: Any) -> None:
    scripted.replies["RCPT"] = "hello?"
    with pytest.raises(MailRefusedForNow):
        deliver(mail, scripted.at())


def test_the_wire_holds_one_recipient_and_doubled_dots(scripted: Any, mail: Any) -> None:
    deliver(mail, scripted.at())
    assert scripted.commands("EHLO") == [b"ehlo example.net\r\n"]
    # Python versions differ in capitals.
    (sender,), (recipient,) = scripted.commands("MAIL"), scripted.commands("RCPT")
    assert sender.lower() == f"mail from:<shop@example.net> size={len(mail.content)}\r\n".encode()
    assert recipient.lower() == b"rcpt to:<ann@example.org>\r\n"
    assert [line for line in scripted.wire if line.startswith(b".")] == [b"..\r\n", b"...last\r\n", b".\r\n"]
    assert all(line.endswith(b"\r\n") for line in scripted.wire if line)


def test_an_address_outside_ascii_needs_a_server_that_takes_it(build_mail: Any, start_smtp: Any) -> None:
    mail = build_mail(to="jörg@example.org")
    with pytest.raises(Permanent, match="SMTPUTF8"):
        deliver(mail, SmtpServer("127.0.0.1", start_smtp(enable_SMTPUTF8=False).port))
    inbox = start_smtp(enable_SMTPUTF8=True)
    deliver(mail, SmtpServer("127.0.0.1", inbox.port))
    assert inbox.mails[-1].recipients == ["jörg@example.org"]


def test_a_mail_beyond_the_servers_size_is_refused_before_it_goes_out(start_smtp: Any, build_mail: Any) -> None:
    inbox = start_smtp(data_size_limit=1000)
    with pytest.raises(Permanent, match="at MAIL FROM: 552"):
        deliver(build_mail(text="x" * 2000), SmtpServer("127.0.0.1", inbox.port))


def test_login(start_smtp: Any, mail: Any) -> None:
    inbox = start_smtp(login=True)
    deliver(mail, SmtpServer("127.0.0.1", inbox.port, username="bob", password="right"))
    assert inbox.logins == [(b"bob", b"right")]
    with pytest.raises(Permanent, match="at AUTH: 535"):
        deliver(mail, SmtpServer("127.0.0.1", inbox.port, username="bob", password="wrong"))
    assert len(inbox.mails) == 1


def test_a_server_without_login_is_permanent(scripted: Any, mail: Any) -> None:
    scripted.replies["EHLO"] = "250 here"
    with pytest.raises(Permanent, match="at AUTH: SMTP AUTH extension not supported"):
        deliver(mail, scripted.at(username="bob", password="hunter2"))


@pytest.mark.usefixtures("trust_it")
def test_starttls(start_smtp: Any, mail: Any, server_certificate: Any) -> None:
    inbox = start_smtp(tls_context=server_certificate, require_starttls=True)
    deliver(mail, SmtpServer("localhost", inbox.port, security="starttls"))
    assert inbox.mails[-1].tls
    with pytest.raises(Permanent, match="at MAIL FROM: 530"):
        deliver(mail, SmtpServer("127.0.0.1", inbox.port))


@pytest.mark.usefixtures("trust_it")
def test_tls_from_the_start(start_smtp: Any, mail: Any, server_certificate: Any) -> None:
    inbox = start_smtp(ssl_context=server_certificate)
    deliver(mail, SmtpServer("localhost", inbox.port, security="tls"))
    assert len(inbox.mails) == 1


def test_starttls_goes_nowhere_without(scripted: Any, mail: Any) -> None:
    with pytest.raises(Permanent, match="at STARTTLS: STARTTLS extension not supported"):
        deliver(mail, scripted.at(security="starttls", username="bob", password="hunter2"))
    assert not scripted.commands("AUTH")
    assert not scripted.commands("MAIL")


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_that_nobody_vouches_for_is_not_taken(
    security: Any, start_smtp: Any, mail: Any, server_certificate: Any
) -> None:
    options = {"tls_context": server_certificate} if security == "starttls" else {"ssl_context": server_certificate}
    server_certificate.check_hostname = False
    inbox = start_smtp(**options)
    with pytest.raises(MailRefusedForNow, match="SSLCertVerificationError"):
        deliver(mail, SmtpServer("localhost", inbox.port, security=security))
    assert not inbox.mails
