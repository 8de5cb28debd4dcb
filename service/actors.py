"""The entry of `dramatiq service.actors`: the configured broker, and every module that CALLBOARD_ACTORS names."""

import importlib
import os
import pkgutil
import sys
from typing import TYPE_CHECKING

import dramatiq

from service.broker import broker
from service.errors import DeclarationError, SettingsError
from service.observe.logs import configure_logs
from service.observe.probe import check_host
from service.queues import TASK_OUTCOMES
from service.settings import get_settings

if TYPE_CHECKING:
    from sqlalchemy import Engine


def import_actor_modules(names: list[str]) -> None:
    """Import modules, and every module inside of packages. Raises SettingsError for a name that is not there."""
    if not names:
        raise SettingsError(_wrong("it names no module"))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise SettingsError(_wrong(f"{name!r} is not the full name of a module"))
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is there and lacks something else must show its own error.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            how = "install its package beside Callboard, or set PYTHONPATH to the folder that it is in"
            raise SettingsError(_wrong(f"there is no module {name!r} on the import path ({how})")) from None
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), prefix=f"{name}."):
            importlib.import_module(found.name)


def _wrong(reason: str) -> str:
    value = get_settings().actors
    return f"CALLBOARD_ACTORS={value!r} is wrong: {reason}; for example: CALLBOARD_ACTORS=mycompany.jobs,actors"


def compose() -> None:
    """Read the settings, set the process's logs, and import the actors. Raises SettingsError."""
    settings = get_settings()
    settings.require_redis_url()
    configure_logs(settings)
    # A worker starts its probe where Dramatiq would only log what goes wrong.
    check_host(settings.worker_host)
    dramatiq.set_broker(broker)
    for queue in settings.served_queues:
        # Also a queue that no actor uses any more may still hold jobs.
        broker.declare_queue(queue)
    import_actor_modules(settings.actor_modules)
    if TASK_OUTCOMES in settings.served_queues:
        from service.tasks.outcome_job import declare

        url = settings.require_database_url()
        declare(broker, lambda: _engine_for(url))


def _engine_for(database_url: str) -> "Engine":
    from service.state.database import engine_for

    return engine_for(database_url)


try:
    compose()
except (SettingsError, DeclarationError) as error:
    # The message says where and what; Dramatiq would bury it in a traceback.
    print(error, file=sys.stderr)
    sys.exit(os.EX_CONFIG)
