"""Time zones by name, and the moments at which their clocks show a time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def zone_named(name: str) -> ZoneInfo:
    """Return a time zone of the IANA database. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(f"there is no time zone {name!r}: {error}") from None


def moment_of(wall: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    """Return when the zone's clocks show a naive time, in UTC; with fold=1 the second time, where they are put back.

    A time that is skipped, since the clocks are put forward, is as much later as they are put forward.
    """
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def wall_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return what the zone's clocks show at a moment, naive."""
    return moment.astimezone(zone).replace(tzinfo=None)
