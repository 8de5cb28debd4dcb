"""How many jobs of this process go on after their time limit, since nothing can interrupt them. The probe shows it."""

from dataclasses import dataclass


@dataclass(slots=True)
class OverdueJobs:
    """now: jobs that hold a thread beyond their limit. total: those since the process started, however they ended."""

    now: int = 0
    total: int = 0


overdue_jobs = OverdueJobs()
