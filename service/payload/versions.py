"""Payloads of earlier versions: each step is a function of the payload, from one version to the next."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from service.errors import DeclarationError, PayloadError, shorten

#: From the payload of one version to that of the next: JSON, as it was sent.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class PayloadVersions:
    """The versions of an actor's payload that it reads: `readable`, up to the `current` one that it sends."""

    def __init__(self, actor_name: str, current: int, upgrades: Mapping[int, Upgrade]) -> None:
        """`upgrades` maps a version to what makes the next one of it. Raises DeclarationError for a gap."""
        if type(current) is not int or current < 1:
            raise DeclarationError(f"{actor_name}: version={current!r} must be a whole number, 1 or more")
        oldest = current
        while oldest - 1 in upgrades:
            oldest -= 1
        if unreachable := sorted(set(upgrades) - set(range(max(oldest, 1), current)), key=str):
            raise DeclarationError(
                f"{actor_name}: upgrades={unreachable} don't lead to version={current}: there must be one for each "
                f"version from the oldest that is still read up to {current - 1}"
            )
        if broken := [version for version, upgrade in upgrades.items() if not callable(upgrade)]:
            raise DeclarationError(f"{actor_name}: upgrades[{broken[0]}] must be a function of the payload")
        self.current = current
        self.readable = range(oldest, current + 1)
        self._actor_name = actor_name
        self._upgrades = dict(upgrades)

    def upgrade(self, payload: dict[str, Any], version: int) -> dict[str, Any]:
        """Return the payload of a readable version as one of the current. Raises PayloadError where a step fails."""
        if version == self.current:
            return payload
        payload = deepcopy(payload)  # the next attempt begins with the message as it is now
        for step in range(version, self.current):
            try:
                payload = self._upgrades[step](payload)
            except Exception as error:
                problem = f"{_which(step)} failed: {type(error).__name__}"  # its own words may show the payload's
                raise PayloadError(self._actor_name, [("", problem)]) from error
            if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                problem = f"{_which(step)} must return an object, not {type(payload).__name__}"
                raise PayloadError(self._actor_name, [("", shorten(problem))])
        return payload


def _which(step: int) -> str:
    return f"its upgrade from version {step} to {step + 1}"


#: Of every actor that says nothing.
ONLY_THE_FIRST = range(1, 2)
