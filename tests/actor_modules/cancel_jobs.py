"""Actors that are cancelled."""

import time
from typing import Any

from fault_jobs import note

from service.job import Cancelled, LeaseLost, job


@job(name="cancel.loop", queue="default")
def loop() -> None:
    note("loop")
    try:
        while True:
            time.sleep(0.02)
    except (Cancelled, LeaseLost):
        note("interrupted")
        raise


@job(name="cancel.dies", queue="default", max_attempts=1)
def dies() -> Any:
    raise ValueError("no")
