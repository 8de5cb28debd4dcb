"""Files that only their owner may read, written whole or not at all."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file's content in one step."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def password_in(path: Path, on_new: Callable[[str], None] = lambda _password: None) -> str:
    """Return the password that a file keeps. One is made the first time, and where the file was emptied.

    on_new: is called with a new one before it is kept, so that what knows the old one is told, or told next time.
    """
    if path.exists() and (kept := path.read_text(encoding="utf-8", errors="replace").strip()):
        return kept
    # Hexadecimal digits need no escaping in URLs, configuration files and shells.
    password = secrets.token_hex(16)
    on_new(password)
    write_private(path, password + "\n")
    return password
