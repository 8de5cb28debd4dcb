"""When what died is started again: a pure decision."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """What lived at least `young_seconds` is replaced at once; what dies young waits, each time twice as long."""

    first_seconds: float = 1.0
    cap_seconds: float = 30.0
    young_seconds: float = 10.0

    def is_young(self, lifetime_seconds: float) -> bool:
        """Say whether a process of this age has died young."""
        return lifetime_seconds < self.young_seconds

    def delay_seconds(self, young_deaths: int) -> float:
        """Return the wait after so many young deaths in a row."""
        if young_deaths == 0:
            return 0.0
        # The exponent is bounded so that a process which dies for days on end does not overflow the sum.
        return min(self.cap_seconds, self.first_seconds * 2.0 ** min(young_deaths - 1, 32))
