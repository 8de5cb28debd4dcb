"""What a server's refusal means for the job: 4xx is worth another attempt, 5xx never is (RFC 5321, 4.2.1)."""

import base64

from service.job import Permanent

MAX_REPLY_CHARACTERS = 500


class MailRefusedForNow(Exception):
    """The server could not be reached or refused for now: the job is retried. `code` is None without a reply."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


def refusal(where: str, code: int, reply: bytes | str, secrets: tuple[str, ...] = ()) -> Exception:
    """Return what to raise for a reply that is not the wanted one."""
    message = f"{where}: {code} {printable(reply, secrets)}"
    return Permanent(message) if 500 <= code <= 599 else MailRefusedForNow(message, code)


def printable(reply: bytes | str, secrets: tuple[str, ...] = ()) -> str:
    """A reply fit for logs and the dead-letter list: bounded, in one line, without the password."""
    text = reply if isinstance(reply, str) else reply.decode("utf-8", "backslashreplace")
    for secret in secrets:
        text = text.replace(secret, "***")
    bounded = text if len(text) <= MAX_REPLY_CHARACTERS else text[:MAX_REPLY_CHARACTERS] + "..."
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in bounded.replace("\n", " / ")
    )


def secrets_of(username: str | None, password: str | None) -> tuple[str, ...]:
    """The forms in which a password goes over the wire: servers repeat a command they did not understand."""
    if not password:
        return ()
    plain = (f"\0{username}\0{password}".encode(), password.encode())
    return (*(base64.b64encode(form).decode("ascii") for form in plain), password)
