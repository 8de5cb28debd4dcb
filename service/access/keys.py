"""API keys as they are stored: made, listed, rotated, revoked, and found for a request.

Every time is PostgreSQL's, so that a key ends at one moment for all processes, whatever their clocks say.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, extract, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from service.access.scopes import ANYBODY, Caller, Scope
from service.access.tables import keys
from service.access.token import Presented, hash_of, is_key_id, new_key_id, new_secret, token_of
from service.errors import InvalidRequest
from service.state.database import reaching

LOOK_UP_SECONDS = 2.5
MOST_CHARACTERS = 256
#: Compared with where there is no such key, so that this takes as long as a wrong secret.
_NOTHING = bytes(32)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. A rate is in requests per second; None leaves it to the setting."""

    key_id: str
    name: str
    scopes: frozenset[Scope]
    tenant: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    previous_until: datetime | None
    rate_per_second: float | None
    burst: int | None

    @property
    def caller(self) -> Caller:
        """Who comes with this key."""
        return Caller(self.name, self.scopes, self.key_id, self.tenant)


@dataclass(frozen=True, slots=True)
class Valid:
    """A key that was found valid, for so many seconds from the question on; inf without an end."""

    key: ApiKey
    seconds: float


class KeyStore:
    """The keys of one database. Every method raises HistoryUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        *,
        by: str,
        tenant: str | None = None,
        expires_in: timedelta | None = None,
        rate_per_second: float | None = None,
        burst: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key. Returns it and its token, which is nowhere else. Raises InvalidRequest."""
        check_text("name", name)
        if is_key_id(name) or name.startswith("cli:") or name == ANYBODY.name:
            raise InvalidRequest([("name", "would be taken for a key's id, or for another one in the audit log")])
        if tenant is not None:
            check_text("tenant", tenant)
        if not (wanted := sorted(set(scopes))):
            raise InvalidRequest([("scopes", f"name one at least of {', '.join(Scope)}")])
        secret, now = new_secret(), func.clock_timestamp()
        row = {
            "key_id": new_key_id(),
            "name": name,
            "scopes": [scope.value for scope in wanted],
            "tenant": tenant,
            "secret_hash": hash_of(secret),
            "created_at": now,
            "created_by": by,
            "expires_at": None if expires_in is None else now + expires_in,
            "rate_per_second": rate_per_second,
            "burst": burst,
        }
        try:
            with reaching(self._engine), self._engine.begin() as connection:
                made = connection.execute(insert(keys).values(**row).returning(keys)).mappings().one()
        except Exception as error:
            if isinstance(error.__cause__, IntegrityError):
                raise InvalidRequest([("name", f"there is a key {name!r} already: rotate or revoke it")]) from None
            raise
        key = _key_of(made)
        return key, token_of(key.key_id, secret)

    def all(self) -> list[ApiKey]:
        """Return all keys, revoked and expired ones too, the newest first."""
        with reaching(self._engine), self._engine.connect() as connection:
            found = connection.execute(select(keys).order_by(keys.c.created_at.desc())).mappings().all()
        return [_key_of(row) for row in found]

    def rotate(self, name_or_id: str, grace: timedelta) -> tuple[ApiKey, str] | None:
        """Give a key a new secret. The old one is valid for `grace` more, and one before that no longer.

        None where there is no such key, or it was revoked.
        """
        secret, now = new_secret(), func.clock_timestamp()
        values = {"previous_hash": keys.c.secret_hash, "previous_until": now + grace, "secret_hash": hash_of(secret)}
        key = self._change(name_or_id, values)
        return None if key is None else (key, token_of(key.key_id, secret))

    def revoke(self, name_or_id: str) -> ApiKey | None:
        """End a key now. None where there is no such key, or it was revoked before."""
        return self._change(name_or_id, {"revoked_at": func.clock_timestamp()})

    def find(self, presented: Presented) -> Valid | None:
        """Look a key up for a request. None where it is unknown, revoked or expired, or its secret is wrong."""
        left, left_of_previous = (
            extract("epoch", column - func.clock_timestamp()) for column in (keys.c.expires_at, keys.c.previous_until)
        )
        asked = select(keys, left.label("left"), left_of_previous.label("left_of_previous"))
        with reaching(self._engine, LOOK_UP_SECONDS), self._engine.connect() as connection:
            found = connection.execute(asked.where(keys.c.key_id == presented.key_id)).mappings().one_or_none()
        # Both are always compared: the time says nothing of which is right, nor whether there is such a key.
        is_new = hmac.compare_digest(presented.secret_hash, found["secret_hash"] if found else _NOTHING)
        previous: bytes | None = found["previous_hash"] if found else None
        is_old = hmac.compare_digest(presented.secret_hash, previous or _NOTHING)
        if found is None or not (is_new or is_old) or found["revoked_at"] is not None:
            return None
        seconds = inf if found["left"] is None else float(found["left"])
        if not is_new:
            seconds = min(seconds, float(found["left_of_previous"]))
        return Valid(_key_of(found), seconds) if seconds > 0 else None

    def _change(self, name_or_id: str, values: dict[str, Any]) -> ApiKey | None:
        meant: ColumnElement[bool] = or_(keys.c.key_id == name_or_id, keys.c.name == name_or_id)
        change = update(keys).where(and_(meant, keys.c.revoked_at.is_(None))).values(**values).returning(keys)
        with reaching(self._engine), self._engine.begin() as connection:
            changed = connection.execute(change).mappings().one_or_none()
        return None if changed is None else _key_of(changed)


def check_text(field: str, text: str) -> str:
    """Return a name or a tenant. Raises InvalidRequest for what could be taken for another."""
    if not 0 < len(text) <= MOST_CHARACTERS or not text.isprintable() or text != text.strip():
        problem = f"must be 1 to {MOST_CHARACTERS} printable characters, with no space at either end"
        raise InvalidRequest([(field, problem)])
    return text


def _key_of(row: Any) -> ApiKey:
    fields: dict[str, Any] = {name: row[name] for name in ApiKey.__dataclass_fields__}
    fields["scopes"] = frozenset(Scope(name) for name in row["scopes"])
    return ApiKey(**fields)
