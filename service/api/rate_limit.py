"""How often a key may ask: a bucket for each key, in this process.

A bucket in Redis would cost each request a round trip, about as much as the send itself. So the bound is per process:
with n processes of the API a key may ask n times as often at most, and its rate is to be divided by n.
"""

from math import ceil

from service.errors import TooManyRequests


class Bucket:
    """Fills with `rate` requests a second, up to `burst`; each request takes one. `now` is monotonic, in seconds."""

    __slots__ = ("_at", "_left", "burst", "rate")

    def __init__(self, rate: float, burst: int | None, now: float) -> None:
        self.rate = rate
        self.burst = burst or max(ceil(rate), 1)
        self._left = float(self.burst)
        self._at = now

    def take(self, now: float) -> None:
        """Count one request. Raises TooManyRequests, and then counts nothing."""
        left = min(self._left + (now - self._at) * self.rate, self.burst)
        self._at = now
        if left < 1:
            self._left = left
            raise TooManyRequests(max(ceil((1 - left) / self.rate), 1))
        self._left = left - 1
