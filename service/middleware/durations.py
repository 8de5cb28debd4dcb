"""Lengths of time in an actor's options."""

from service import durations
from service.errors import DeclarationError
from service.middleware.defaults import WrongOptions

#: Longer is a rule of the application, which belongs into its own database.
MOST_SECONDS = 366 * 24 * 3600


def seconds_of(given: object, option: str) -> float:
    """Return the seconds of an option's value. Raises WrongOptions, which names the option."""
    try:
        seconds = durations.seconds_of(given, option)
    except DeclarationError as error:
        raise WrongOptions(str(error)) from None
    if seconds > MOST_SECONDS:
        raise WrongOptions(f"{option}={given!r} must be a year at most")
    return seconds
