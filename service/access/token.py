"""The text of a key: `cb_`, the key's id, and its secret. The id is no secret: lists and logs show it.

A secret is 256 random bits, so nobody finds it by trying, however fast: a slow hash, which passwords need because
people choose them, would cost each request milliseconds and protect nothing. SHA-256 keeps who reads the table from
using what is in it. The id finds the row, so that no secret is ever searched for by an index, whose time would tell how
much of it is right; hashes are compared in constant time.
"""

import hashlib
import re
import secrets
from typing import NamedTuple

MOST_BYTES = 200
_TOKEN = re.compile(rb"cb_([0-9a-f]{16})_([0-9a-f]{64})")


class Presented(NamedTuple):
    """A key as a request has it, without its secret: what may be kept and compared."""

    key_id: str
    secret_hash: bytes


def new_key_id() -> str:
    """Make the id of a key."""
    return secrets.token_hex(8)


def is_key_id(text: str) -> bool:
    """Say whether a text has the form of a key's id."""
    return re.fullmatch("[0-9a-f]{16}", text) is not None


def new_secret() -> str:
    """Make the secret of a key."""
    return secrets.token_hex(32)


def token_of(key_id: str, secret: str) -> str:
    """Return what a client sends."""
    return f"cb_{key_id}_{secret}"


def hash_of(secret: str) -> bytes:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def read_token(token: bytes) -> Presented | None:
    """Read what a client has sent; None for what can't be a key, so that nothing is looked up for it."""
    found = _TOKEN.fullmatch(token) if len(token) <= MOST_BYTES else None
    return None if found is None else Presented(found[1].decode(), hashlib.sha256(found[2]).digest())
