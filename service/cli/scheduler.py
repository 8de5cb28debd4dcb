"""`callboard scheduler`: the process that sends the jobs which are due by schedule."""

import argparse


def configure(_parser: argparse.ArgumentParser) -> None:
    """The scheduler has no options: settings say all."""


def run(_arguments: argparse.Namespace) -> int:
    """Send what is due until a signal ends it."""
    from service.cli.stopping import stop_on_signals
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    stop = stop_on_signals()
    settings = get_settings()
    configure_logs(settings)

    import service.actors  # noqa: F401  # pyright: ignore[reportUnusedImport] - what schedules send to
    from service.schedules.runner import run_scheduler

    run_scheduler(settings, stop)
    return 0
