"""The table of schedules in code, which CALLBOARD_SCHEDULES names."""

import importlib
from typing import Any, cast

from service.errors import SettingsError
from service.schedules.schedule import Schedule


def load_table(name: str) -> tuple[Schedule, ...]:
    """Import a table of schedules by its `module:attribute`. Raises SettingsError."""
    module_name, _, attribute = name.partition(":")
    try:
        table: Any = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(table, tuple | list):
            raise TypeError("it is no tuple and no list")
        if not all(isinstance(schedule, Schedule) for schedule in cast("list[Any]", table)):
            raise TypeError("not every item of it is a Schedule")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"CALLBOARD_SCHEDULES={name!r} is wrong: {error}; "
            "for example: CALLBOARD_SCHEDULES=mycompany.schedules:SCHEDULES"
        ) from None
    schedules = cast("list[Schedule]", table)
    names = [schedule.name for schedule in schedules]
    if twice := {each for each in names if names.count(each) > 1}:
        raise SettingsError(
            f"CALLBOARD_SCHEDULES={name!r} is wrong: two schedules are named {', '.join(sorted(twice))}"
        )
    return tuple(schedules)
