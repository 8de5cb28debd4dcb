"""Sums over due times: how many have passed, which are the newest, which come next. Pure."""

from collections import deque
from datetime import datetime, timedelta

from service.schedules.schedule import Schedule

#: Of more due times in one stretch it is only known that they were as many: others wait for this sum.
MOST_COUNTED = 1000
_FIRST_LOOK = timedelta(minutes=1)


def next_times(schedule: Schedule, moment: datetime, count: int) -> list[datetime]:
    """Return up to `count` due times later than a moment."""
    found: list[datetime] = []
    while len(found) < count and (due := schedule.after(moment)) is not None:
        found.append(due)
        moment = due
    return found


def count_between(schedule: Schedule, after: datetime, until: datetime) -> int:
    """Return how many due times are later than `after` and not later than `until`, MOST_COUNTED at most."""
    count = 0
    while count < MOST_COUNTED and (due := schedule.after(after)) is not None and due <= until:
        after = due
        count += 1
    return count


def newest_between(schedule: Schedule, after: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the newest `most` due times later than `after` and not later than `until`, the oldest first."""
    # Looking back further and further: from `after` on it may be millions.
    look = _FIRST_LOOK
    while True:
        start = max(after, until - look)
        found = _last_between(schedule, start, until, most)
        if len(found) == most or start == after:
            return found
        look *= 4


def _last_between(schedule: Schedule, after: datetime, until: datetime, most: int) -> list[datetime]:
    found: deque[datetime] = deque(maxlen=most)
    while (due := schedule.after(after)) is not None and due <= until:
        found.append(due)
        after = due
    return list(found)
