"""The text of a crontab line, checked in full and told to APScheduler in its own words."""

import re
from collections.abc import Mapping

_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_SUNDAY = 7


def line_for_apscheduler(expression: str) -> str:
    """Return what APScheduler reads as crontab reads `expression`. Raises ValueError for what is not supported."""
    # Checked here in full: what APScheduler reads in its own way would be another time, not a refusal.
    fields = expression.lower().split()
    if len(fields) != len(_FIELDS):
        raise ValueError("must have five fields: minute, hour, day of the month, month, day of the week")
    fields[3] = _with_numbers(fields[3], _MONTHS)
    fields[4] = _with_numbers(fields[4], _WEEKDAYS)
    for name, text in zip(_FIELDS, fields, strict=True):
        if not all(re.fullmatch(r"(\*|[0-9]+(-[0-9]+)?)(/[0-9]+)?", item) for item in text.split(",")):
            raise ValueError(f"{text!r} is no {name}, list or range of them")
    if not fields[2].startswith("*") and not fields[4].startswith("*"):
        # crontab takes either of the two, APScheduler both: refused rather than given another meaning.
        raise ValueError("a day of the month and a day of the week can't be given together")
    # APScheduler counts weekdays from Monday, crontab from Sunday: names mean the same to both.
    fields[4] = ",".join(_weekday_names(item) for item in fields[4].split(","))
    return " ".join(fields)


def _with_numbers(text: str, names: Mapping[str, int]) -> str:
    # A range may end with Sunday, which is 7 then.
    text = re.sub(r"-sun\b", f"-{_SUNDAY}", text)
    return re.sub(r"[a-z]+", lambda found: str(names.get(found[0], found[0])), text)


def _weekday_names(item: str) -> str:
    if item == "*":
        return item
    days, _, step = item.partition("/")
    first, _, last = days.partition("-")
    start = 0 if first == "*" else int(first)
    end = int(last) if last else (6 if first == "*" or step else start)
    if not start <= end <= _SUNDAY or step == "0":
        raise ValueError(f"{item!r} is no day of the week, or no range of them")
    names = list(_WEEKDAYS)
    return ",".join(names[number % _SUNDAY] for number in range(start, end + 1, int(step or 1)))
