"""Cancels the job of a task in progress, wherever that job is: sent, about to be sent, running, or lost."""

from service.broker import RedisBroker
from service.broker.job_acts import JobActs, cancellation
from service.state.history import History
from service.state.states import is_final
from service.tasks.reconciler import ONCE_WITHIN_SECONDS
from service.tasks.runs import Runs
from service.tasks.task import Task


class Cancellation:
    """Raises BrokerUnavailable and HistoryUnavailable; every step may be repeated."""

    def __init__(self, broker: RedisBroker, history: History) -> None:
        self._acts = JobActs(broker)
        self._history = history
        self._runs = Runs(history.engine)

    def cancel(self, task: Task, by: str) -> bool:
        """Cancel the job of a task. Returns whether the task has its outcome; else it ends in a moment, as cancelled.

        What it ends as may be something else, where the job was faster.
        """
        if task.job_id is None:  # somebody else has written the row
            self._runs.cancel(task.task_id, None, _text_of(by))
            return True
        job_id = str(task.job_id)
        act = self._acts.cancel(job_id, by=by)
        if act is None and not self._acts.forestall(task.queue, job_id, ONCE_WITHIN_SECONDS):
            act = self._acts.cancel(job_id, by=by)  # it may have been sent between the two looks
        if act is not None and act.state == "running":
            self._runs.look_soon(task.job_id)
            return False
        snapshot = self._history.find(task.job_id)
        if snapshot is not None and is_final(snapshot.state):
            self._runs.end(task.task_id, snapshot)
        else:
            # It was never sent, or is known nowhere any more, and is not sent after this.
            self._runs.cancel(task.task_id, task.job_id, _text_of(by))
        return True


def _text_of(by: str) -> str:
    error = cancellation(by, "")
    return f"{error.type}: {error.message}"
