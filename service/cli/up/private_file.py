"""Files that only their owner may read, written whole or not at all."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file's content in one step."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def password_in(path: Path) -> str:
    """Return the password that a file keeps; it is made the first time."""
    if not path.exists():
        # Hexadecimal digits need no escaping in URLs, configuration files and shells.
        write_private(path, secrets.token_hex(16) + "\n")
    return path.read_text(encoding="utf-8").strip()
