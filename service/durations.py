"""Lengths of time as people write them: seconds, or a number with a unit."""

import re
from math import isfinite

from service.errors import DeclarationError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
LEAST_SECONDS = 0.001


def seconds_of(value: object, what: str) -> float:
    """Return seconds, 0.001 or more, of a number of seconds or a text: "90s", "15m", "1.5h", "2d".

    Raises DeclarationError for anything else; `what` names it there.
    """
    seconds = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        seconds = float(match[1]) * UNITS[match[2]]
    if seconds is None or not isfinite(seconds) or seconds < LEAST_SECONDS:
        raise DeclarationError(f'{what}={value!r} must be seconds over 0, or a text such as "90s", "15m", "1h", "2d"')
    return seconds
