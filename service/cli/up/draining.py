"""Stops everything in order, so that what was accepted is finished and what was finished is recorded."""

import logging
import time
from threading import Event

from service.cli.supervise.supervisor import Supervisor
from service.cli.up import parts, postgres, valkey

logger = logging.getLogger(__name__)


def drain(supervisor: Supervisor, hurry: Event) -> None:
    """Stop all: first what brings in jobs, then the workers, then what records, servers last."""
    ends = {parts.API, parts.SCHEDULER, parts.MIGRATE, parts.PROJECTOR, parts.MAIL, valkey.NAME, postgres.NAME}
    workers = [name for name in supervisor.names() if name not in ends]
    started = time.monotonic()
    # Each with the longest that it may take, a little more than its own limit.
    supervisor.stop([parts.MIGRATE], 2, hurry)
    supervisor.stop([parts.API, parts.SCHEDULER], 12, hurry)
    if workers:
        logger.info("Waiting for running jobs to finish, up to %d s", parts.DRAIN_SECONDS)
    supervisor.stop(workers, parts.DRAIN_SECONDS + 3, hurry)
    # The projector stores what the workers have left in the streams before it ends.
    supervisor.stop([parts.PROJECTOR], 10, hurry)
    supervisor.stop([parts.MAIL], 3, hurry)
    supervisor.stop([valkey.NAME, postgres.NAME], 20, hurry)
    logger.info("Stopped in %.1f s", time.monotonic() - started)
