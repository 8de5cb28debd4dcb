"""How header lines are folded and encoded.

The library's own folding turns any ASCII word longer than a line into encoded words, which breaks message ids and
the links of List-Unsubscribe, and may change the spaces of encoded text. Here ASCII is folded at its spaces and nowhere
else, and text outside ASCII is encoded as a whole.
"""

import base64
import re
from email.headerregistry import AddressHeader, UnstructuredHeader
from email.policy import EmailPolicy
from typing import Any

from service.job import Permanent

#: Preferred and hard length of a line, without its end.
LINE_CHARACTERS = 78
MAX_LINE_BYTES = 998

# 42 bytes are 56 in base64: with its frame an encoded word stays below the 75 that RFC 2047 allows.
_WORD_BYTES = 42


class MailPolicy(EmailPolicy):
    """The SMTP policy (CRLF, 7 bit) with the folding above."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        """Return one header, folded, with its line end."""
        text = str(value)
        if "\r" in text or "\n" in text:
            # The library decodes encoded words on its way here: what comes out has passed no rule of ours.
            raise Permanent(f"The header {name} would hold a line break")
        if text.isascii() or self.utf8:
            lines = _at_spaces(name, text)
            if all(len(line.encode()) <= MAX_LINE_BYTES for line in lines):
                return "".join(f"{line}\r\n" for line in lines).encode()
        encoded = _encoded(value)
        return super().fold_binary(name, value) if encoded is None else f"{name}: {encoded}\r\n".encode("ascii")


MAIL_POLICY = MailPolicy(linesep="\r\n", cte_type="7bit")


def _at_spaces(name: str, text: str) -> list[str]:
    lines = [f"{name}:"]
    # Each piece starts with its spaces, so a folded line does too; spaces at the end stay with the last word.
    for piece in re.findall(r" *[^ ]+(?: +$)?", f" {text}"):
        if len(lines[-1]) + len(piece) > LINE_CHARACTERS and not lines[-1].endswith(":"):
            lines.append(piece)
        else:
            lines[-1] += piece
    return lines


def _encoded(value: object) -> str | None:
    if isinstance(value, UnstructuredHeader):
        return _encoded_words(str(value))
    if isinstance(value, AddressHeader) and len(value.addresses) == 1:
        (only,) = value.addresses
        return f"{_encoded_words(only.display_name)}\r\n <{only.addr_spec}>"
    return None


def _encoded_words(text: str) -> str:
    chunks = [b""]
    for character in text:
        encoded = character.encode()
        if len(chunks[-1]) + len(encoded) > _WORD_BYTES:
            chunks.append(b"")
        chunks[-1] += encoded
    return "\r\n ".join(f"=?utf-8?b?{base64.b64encode(chunk).decode('ascii')}?=" for chunk in chunks)
