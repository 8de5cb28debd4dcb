"""`callboard projector`: the process that writes what happened to jobs into the database."""

import argparse


def configure(_parser: argparse.ArgumentParser) -> None:
    """The projector has no options: settings say all."""


def run(_arguments: argparse.Namespace) -> int:
    """Project until a signal ends it."""
    from service.cli.stopping import stop_on_signals
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    stop = stop_on_signals()
    settings = get_settings()
    configure_logs(settings)

    from service.broker import broker
    from service.state.database import engine_for
    from service.state.projector import run_projector
    from service.tasks.reconciler import TaskReconciler

    settings.require_redis_url()
    tasks = TaskReconciler(broker, engine_for(settings.require_database_url()))
    tasks.start()
    run_projector(settings, stop)
    tasks.stop()
    return 0
