"""Finds out whose key a request has. A key that was checked lately is not looked up again.

While PostgreSQL answers, a key is checked again after FRESH_SECONDS, beside the requests, and none passes on a check
that is older than REVOKED_WITHIN_SECONDS: so long a revoked key may work. While PostgreSQL does not answer, a key that
was found valid lately goes on working for `outage_seconds`, since sending needs Redis only; others get 503, not 401.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from starlette.types import Scope

from service.access.keys import KeyStore, Valid
from service.access.scopes import ANYBODY, Caller
from service.access.token import Presented, read_token
from service.api.lines import Line
from service.api.rate_limit import Bucket
from service.errors import CallboardError, HistoryUnavailable, KeysUnavailable, NotAuthenticated
from service.state.pause import Pause

FRESH_SECONDS = 2.0
REVOKED_WITHIN_SECONDS = 5.0
#: After a look-up that failed, the next ones are not waited for.
FAILING_SECONDS = 5.0
RETRY_SECONDS = 1.0
#: Keys that are remembered; there is no more than one for each secret in use.
MOST_REMEMBERED = 50_000


@dataclass(slots=True)
class _Known:
    caller: Caller
    bucket: Bucket | None
    checked_at: float
    valid_until: float
    tried_at: float


class KeyAuthentication:
    """Asks for a key. Belongs to one event loop."""

    def __init__(
        self,
        store: KeyStore,
        *,
        outage_seconds: float,
        rate_per_second: float | None = None,
        burst: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._outage_seconds = outage_seconds
        self._rate = rate_per_second
        self._burst = burst
        self._clock = clock
        self._known: dict[Presented, _Known] = {}
        self._buckets: dict[str, Bucket] = {}
        self._checks: dict[Presented, asyncio.Task[None]] = {}
        self._failed_at = float("-inf")
        self._postgresql = Pause(HistoryUnavailable)
        # Two lines: a flood of keys that nobody has made does not keep known ones from being checked.
        self._first_looks = Line(2, HistoryUnavailable)
        self._repeated = Line(2, HistoryUnavailable)

    async def __call__(self, scope: Scope, *, again: bool = False) -> Caller:
        """Return the caller of a request. Raises NotAuthenticated, KeysUnavailable, TooManyRequests.

        again: it was counted before, and goes on.
        """
        presented = read_authorization(scope)
        known = self._known.get(presented)
        if known is None:
            known = await self._first_look(presented)
        elif self._clock() - known.checked_at > FRESH_SECONDS:
            known = await self._checked_again(presented, known)
        now = self._clock()
        if now >= known.valid_until:
            self._known.pop(presented, None)
            raise NotAuthenticated(REFUSED)
        if known.bucket is not None and not again:
            known.bucket.take(now)
        return known.caller

    async def _first_look(self, presented: Presented) -> _Known:
        asked_at = self._clock()
        try:
            valid = await self._first_looks.run(self._find, presented)
        except HistoryUnavailable:
            raise KeysUnavailable from None
        if valid is None:
            raise NotAuthenticated(REFUSED)
        return self._remember(presented, valid, asked_at)

    async def _checked_again(self, presented: Presented, known: _Known) -> _Known:
        now = self._clock()
        check = self._checks.get(presented)
        if check is None and now - known.tried_at >= RETRY_SECONDS:
            known.tried_at = now
            check = self._checks[presented] = asyncio.create_task(self._check(presented))
        age = now - known.checked_at
        # In an outage nobody waits for a look-up, as long as the key works without.
        works_without = age <= self._outage_seconds and now - self._failed_at < FAILING_SECONDS
        if age > REVOKED_WITHIN_SECONDS and not works_without and check is not None:
            # Not to be broken off with the request: others wait for it too.
            await asyncio.shield(check)
        still_known = self._known.get(presented)
        if still_known is None:
            raise NotAuthenticated(REFUSED)
        age = self._clock() - still_known.checked_at
        if age > max(self._outage_seconds, REVOKED_WITHIN_SECONDS):
            raise KeysUnavailable
        return still_known

    async def _check(self, presented: Presented) -> None:
        asked_at = self._clock()
        try:
            valid = await self._repeated.run(self._find, presented)
        except CallboardError:
            self._failed_at = self._clock()
        else:
            if valid is None:
                self._known.pop(presented, None)
            else:
                self._remember(presented, valid, asked_at)
        finally:
            self._checks.pop(presented, None)

    def _find(self, presented: Presented) -> Valid | None:
        with self._postgresql.around():
            return self._store.find(presented)

    def _remember(self, presented: Presented, valid: Valid, asked_at: float) -> _Known:
        if len(self._known) >= MOST_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        bucket = self._bucket_of(valid)
        known = _Known(valid.key.caller, bucket, asked_at, asked_at + valid.seconds, asked_at)
        self._known[presented] = known
        return known

    def _bucket_of(self, valid: Valid) -> Bucket | None:
        key = valid.key
        rate = self._rate if key.rate_per_second is None else key.rate_per_second
        if rate is None:
            return None
        burst = self._burst if key.burst is None and key.rate_per_second is None else key.burst
        fresh = Bucket(rate, burst, self._clock())
        bucket = self._buckets.setdefault(key.key_id, fresh)
        # One for both secrets of a key, and kept as it is, as long as its limit is the same.
        if (bucket.rate, bucket.burst) != (fresh.rate, fresh.burst):
            bucket = self._buckets[key.key_id] = fresh
        return bucket


class KeysWhereGiven:
    """Open mode: who brings a key is held to it, and who brings none may do everything."""

    def __init__(self, keys: KeyAuthentication) -> None:
        self._keys = keys

    async def __call__(self, scope: Scope, *, again: bool = False) -> Caller:
        """Return the caller of a request."""
        has_key = any(name == b"authorization" for name, _ in scope["headers"])
        return await self._keys(scope, again=again) if has_key else ANYBODY


MISSING = "The header Authorization: Bearer cb_... is missing"
#: For every key that does not work, whatever is wrong with it.
REFUSED = "This key is not valid"


def read_authorization(scope: Scope) -> Presented:
    """Return the key that a request has. Raises NotAuthenticated, which repeats nothing of it."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        raise NotAuthenticated("There is more than one header Authorization" if given else MISSING)
    scheme, _, token = given[0].partition(b" ")
    if scheme.lower() != b"bearer":
        raise NotAuthenticated(MISSING)
    presented = read_token(token)
    if presented is None:
        raise NotAuthenticated(REFUSED)
    return presented
