"""Schedules: what is to be sent when, and the scheduler that sends it once for each due time."""

from service.schedules.schedule import Cron, Every, Once, Schedule

__all__ = ["Cron", "Every", "Once", "Schedule"]
