"""What may stand in a mail's header lines and in SMTP commands: the one place for it.

A line break in such a value adds a header or a recipient of the sender's choice. So the payload model asks these rules
when a job is sent, and the message builder asks them again for each value it writes. Each rule returns the value
unchanged or raises a ValueError fit for the caller.
"""

import re
import unicodedata

#: A header line of 998 characters is the limit of RFC 5322. Longer subjects could not be sent as they are.
MAX_TEXT_CHARACTERS = 998
MAX_FILENAME_CHARACTERS = 200
MAX_HEADER_NAME_CHARACTERS = 76
MAX_LOCAL_PART_BYTES = 64
MAX_ADDRESS_BYTES = 254

# Control characters (NUL, CR, LF, tab, U+0085 among them), the two line separators of Unicode, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# An encoded word is a second way to write any character, line breaks included: mail libraries decode it, Python's own
# also where its end is missing.
_ENCODED_WORD = re.compile(r"=\?[^?]*\?[^?]*\?")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ATOM = re.compile(r'[^\s@()<>\[\]:;,"\\.]+')
_LABEL = re.compile(r"[^\W_](?:[\w-]*[^\W_])?")
_CONTENT_TYPE = re.compile(r"([a-z0-9][a-z0-9!#$&^_.+-]{0,62})/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}", re.IGNORECASE)

_RESERVED_NAMES = frozenset(
    {"to", "cc", "bcc", "from", "sender", "subject", "date", "message-id", "reply-to", "return-path", "x-job-id"}
    | {"received", "received-spf", "authentication-results", "domainkey-signature"}
    | {"apparently-to", "delivered-to", "envelope-to", "x-original-to"}
)
_RESERVED_PREFIXES = ("content-", "mime-", "resent-", "arc-", "dkim-")


def header_text(value: str) -> str:
    """Free text of a header: a subject, a name, the value of a header of one's own."""
    if len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"must not be longer than {MAX_TEXT_CHARACTERS} characters")
    if found := _UNSAFE.search(value):
        code_point = f"U+{ord(found.group()):04X}"
        raise ValueError(f"must not hold line breaks or control characters ({code_point} at {found.start()})")
    if _ENCODED_WORD.search(value):
        raise ValueError("must be plain text, not an encoded word (=?...?=): it is encoded on the way out")
    return value


def address(value: str) -> str:
    """One bare address, such as `ann@example.org`, with no name around it."""
    local, at, domain = header_text(value).rpartition("@")
    if not at or "@" in local or not all(map(_ATOM.fullmatch, local.split("."))):
        raise ValueError("must be one bare e-mail address, such as ann@example.org")
    if not all(_LABEL.fullmatch(label) and len(label) <= 63 for label in domain.split(".")):
        raise ValueError("must have a domain name after the @, such as example.org")
    if not value.isprintable() or unicodedata.normalize("NFKC", value) != value:
        # A full-width @ or dot turns into a plain one further along the way.
        raise ValueError("must not hold invisible or compatibility characters")
    ascii_domain(domain)
    if len(local.encode()) > MAX_LOCAL_PART_BYTES or len(value.encode()) > MAX_ADDRESS_BYTES:
        raise ValueError(f"must have at most {MAX_LOCAL_PART_BYTES} bytes before the @ and {MAX_ADDRESS_BYTES} in all")
    return value


def ascii_domain(domain: str) -> str:
    """The form of a domain that every protocol takes: itself, or its punycode."""
    try:
        return domain if domain.isascii() else domain.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("must have a domain name after the @ that can be looked up") from None


def header_name(value: str) -> str:
    """The name of a header of one's own. Those that the service writes, or that route mail, are refused."""
    if len(value) > MAX_HEADER_NAME_CHARACTERS or not _TOKEN.fullmatch(value):
        raise ValueError(f"must be 1 to {MAX_HEADER_NAME_CHARACTERS} letters, digits or dashes, such as X-Campaign")
    if value.lower() in _RESERVED_NAMES or value.lower().startswith(_RESERVED_PREFIXES):
        raise ValueError(f"{value} is written by the service or by mail servers, and can't be set")
    return value


def filename(value: str) -> str:
    """The name of an attached file: a name, not a path."""
    if not 1 <= len(header_text(value)) <= MAX_FILENAME_CHARACTERS:
        raise ValueError(f"must have 1 to {MAX_FILENAME_CHARACTERS} characters")
    if any(character in value for character in '/\\"') or value.strip(" .") == "":
        raise ValueError("must be a file's name, with no slash, backslash or double quote")
    return value


def content_type(value: str) -> str:
    """The type of an attached file, such as `application/pdf`, without parameters."""
    found = _CONTENT_TYPE.fullmatch(value)
    if found is None or found.group(1).lower() in ("multipart", "message"):
        raise ValueError("must be one type of a single file, such as application/pdf")
    return value
