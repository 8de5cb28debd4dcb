"""Acts of the command line in the audit log, as `cli:USER`."""

import argparse
import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from service.cli.failure import CommandFailed
from service.cli.who import user
from service.errors import CallboardError, HistoryUnavailable

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Done:
    """What an act says of itself when it is done."""

    count: int | None = None


@contextmanager
def audited(what: str, *, why: str = "", filter: Any = None) -> Generator[Done]:
    """Do an act between the beginning and the end of its line. Raises CommandFailed where it can't be written down.

    Raises SettingsError without DATABASE_URL.
    """
    from service.access.audit import Act, AuditLog
    from service.settings import get_settings
    from service.state.database import engine_for

    engine = engine_for(get_settings().require_database_url())
    log = AuditLog(engine)
    act = Act(who=f"cli:{user()}", what=f"callboard {what}", request_id=str(uuid4()), why=why, filter=filter)
    try:
        try:
            number = log.begin(act)
        except HistoryUnavailable as error:
            raise CommandFailed(f"Nothing was done, since the audit log can't be written: {error}") from error
        done, status = Done(), 500
        try:
            yield done
            status = 200
        except CallboardError as error:
            status = error.status
            raise
        finally:
            try:
                log.end(number, status, count=done.count)
            except HistoryUnavailable as error:
                said = f"its end can't be written into the audit log: {error}"
                if status == 200:
                    raise CommandFailed(f"It was done, and {said}") from error
                logger.error("It failed, and %s", said)  # why it failed is told after this
    finally:
        engine.dispose()


@contextmanager
def noted(what: str, arguments: argparse.Namespace, filter: Any) -> Generator[Done]:
    """Do an act of an operator between the beginning and the end of its line, where there is a database to write it to.

    Without DATABASE_URL the act is in the log of the command only. Raises what `audited` raises.
    """
    from service.settings import get_settings

    if get_settings().database_url is None:
        yield Done()
        return
    by = getattr(arguments, "by", None)
    told = {**filter, "by": by} if by else filter
    with audited(what, why=getattr(arguments, "why", ""), filter=told) as done:
        yield done
