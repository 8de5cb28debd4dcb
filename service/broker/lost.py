"""What is raised in a job whose lease was lost."""

from dramatiq.middleware.threading import Interrupt


class LeaseLost(Interrupt):
    """The job runs elsewhere by now: whatever this run still does can't be settled."""
