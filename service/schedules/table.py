"""The schedules of this installation. A new schedule is one more line here:

    Schedule("nightly-digest", actor="email.send", when=Cron("30 7 * * 1-5", "Europe/Brussels"), payload={...}),

A team that keeps its own table names it in CALLBOARD_SCHEDULES.
"""

from service.schedules.schedule import Schedule

SCHEDULES: tuple[Schedule, ...] = ()
