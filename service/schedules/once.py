"""One due time."""

from dataclasses import dataclass
from datetime import UTC, datetime

from service.errors import DeclarationError
from service.schedules.zones import moment_of, zone_named


@dataclass(frozen=True)
class Once:
    """One date and time, on the wall of `timezone` where it names no zone itself."""

    at: datetime
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            zone_named(self.timezone)
        except ValueError as error:
            raise DeclarationError(f"Once({self.at.isoformat()}): {error}") from None

    def after(self, moment: datetime) -> datetime | None:
        """Return the time where it is later than a moment."""
        due = self.at.astimezone(UTC) if self.at.tzinfo else moment_of(self.at, zone_named(self.timezone))
        return due if due > moment else None
