"""What is a difference between a job's row and what Redis knows of it, and how many there were: for Prometheus."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client import Counter as CounterMetric

from service.queues import QUEUES
from service.state.lost_job import ms
from service.state.states import State, is_final


class Difference(StrEnum):
    """Each is repaired. What Redis does not know is none of them: it is counted, and left to a rebuild."""

    STATE = "state"
    #: A scheduled job has come due. Nobody tells of that: it is no fault.
    DUE = "due"
    #: The database has no row of it.
    UNKNOWN = "unknown"


def difference(row: Mapping[Any, Any], record: Mapping[str, str]) -> Difference | None:
    """Compare the row of a job that has not ended with what Redis says, as `find_record` has it.

    What has waited for its key, or for the time of its next attempt, and may start now, has not changed by that.
    """
    stored, live = State(row["state"]), State(record["state"])
    due = record.get("run_at")
    differs = (
        is_final(live)
        or int(record["attempt"]) > row["attempt"]
        or (live is State.RUNNING) != (stored is State.RUNNING)
        or (live is State.WAITING and stored is not State.WAITING)
        or (row["priority"] is not None and int(record.get("priority", row["priority"])) != row["priority"])
        or (due is not None and (row["run_at"] is None or abs(ms(row["run_at"]) - int(due)) > 1))
    )
    if differs:
        return Difference.STATE
    return Difference.DUE if stored is State.SCHEDULED and live is State.PENDING else None


class Findings:
    """What a reconciler has found. The names are a contract: see docs/operating.md."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["queue", "difference"]
        self._differences = CounterMetric(
            "callboard_reconciler_differences", "Rows that were repaired.", labels, registry=self.registry
        )
        self._missing = Gauge(
            "callboard_reconciler_missing_jobs",
            "Jobs that have not ended in the database and are not in Redis.",
            ["queue"],
            registry=self.registry,
        )
        self._swept_at = Gauge(
            "callboard_reconciler_swept_at_seconds", "When all were looked at last.", registry=self.registry
        )

    def note(self, queue: str, kind: Difference) -> None:
        """Count a row that was repaired."""
        self._differences.labels(queue, kind.value).inc()

    def note_sweep(self, missing: Counter[str], at: float) -> None:
        """Note how many each queue misses, and when the sweep ended (seconds since 1970)."""
        for queue in QUEUES:
            self._missing.labels(queue).set(missing[queue])
        self._swept_at.set(at)

    def text(self) -> bytes:
        """Return all as Prometheus reads it."""
        return generate_latest(self.registry)
