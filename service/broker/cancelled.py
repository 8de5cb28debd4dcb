"""What is raised in a job that was cancelled."""

from asyncio import CancelledError

from dramatiq.middleware.threading import Interrupt


class Cancelled(Interrupt, CancelledError):
    """Somebody has cancelled the job. It may clean up, and is cancelled however it ends.

    No Exception, so that `except Exception` lets it through. A coroutine meets it as asyncio's own cancellation too.
    """
