"""An actor that carries tasks out."""

import os
import time
from pathlib import Path

from service.job import job


@job(name="agent.note", queue="default", max_attempts=1)
def note(*, task_id: str, description: str) -> str:
    """Note the task, and last as many seconds as its description says."""
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{task_id}\n")
    time.sleep(float(description or 0))
    return description
