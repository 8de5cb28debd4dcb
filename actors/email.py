"""E-mail: one job sends one mail to one recipient."""

from typing import Literal, TypedDict

from actors.mail import catalogue
from actors.mail.message import build
from actors.mail.payload import EmailJobPayload
from actors.mail.rendering import render
from actors.mail.smtp import SmtpServer, deliver
from service.job import current_job, get_settings, job


class EmailResult(TypedDict):
    """What a finished job answers. "sent" means that the SMTP server has taken the mail."""

    status: Literal["sent"]
    to: str


@job(
    name="email.send",
    queue="email",
    aliases=("send-email",),
    max_payload_bytes=4 * 1024 * 1024,
    idempotency_key="email:{to}:{template_id}:{ref_id}",
    duplicate_result={"status": "already_sent", "skipped": True},
)
def send_email(payload: EmailJobPayload) -> EmailResult:
    """Render a template and send it. A refusal for now (4xx, no connection) is retried, a 5xx reply is permanent.

    Of several jobs with the same recipient, template and ref_id, one sends; without a ref_id each does.
    """
    parts = render(payload.template_id, payload.context, catalogue.folder())
    mail = build(payload, parts, job_id=current_job().job_id, sender=get_settings().mail_from)
    deliver(mail, _server())
    return {"status": "sent", "to": payload.to}


def _server() -> SmtpServer:
    settings = get_settings()
    return SmtpServer(
        host=settings.smtp_host,
        port=settings.smtp_port,
        security=settings.smtp_security,
        username=settings.smtp_username,
        password=settings.smtp_password.get_secret_value() if settings.smtp_password else None,
        timeout_seconds=settings.smtp_timeout_seconds,
    )
