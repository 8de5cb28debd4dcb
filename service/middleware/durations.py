"""Times in an actor's options: seconds, or text such as "24h"."""

import re

from service.middleware.defaults import WrongOptions

#: Longer is a rule of the application, which belongs into its own database.
MOST_SECONDS = 366 * 24 * 3600
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def seconds_of(given: object, option: str) -> float:
    """Return the seconds of an option's value. Raises WrongOptions, which names the option."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", given) if isinstance(given, str) else None
    seconds = int(found[1]) * UNIT_SECONDS[found[2]] if found else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= MOST_SECONDS:
        raise WrongOptions(
            f'{option}={given!r} must be seconds, or text such as "90s", "15m", "24h" or "7d", up to a year'
        )
    return float(seconds)
