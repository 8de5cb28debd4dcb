"""The SQL of tasks. Each method is one transaction. Raises HistoryUnavailable where the database can't be used."""

import base64
import binascii
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from dramatiq.message import Message
from sqlalchemy import Connection, Engine, and_, delete, func, insert, select, tuple_, update

from service.broker.messages import encode_message
from service.errors import InvalidRequest, TaskRunning
from service.state.database import reaching
from service.state.task_states import TaskStatus
from service.state.task_tables import runs, tasks
from service.tasks.task import NOT_EXECUTED, Task, changes_of

ANSWER_SECONDS = 2.5
#: After so long a reconciler looks at what has begun: by then it is mostly sent.
FIRST_LOOK = timedelta(seconds=2)


class Page(NamedTuple):
    """Some tasks, the newest first, and the cursor of those that follow, or None."""

    tasks: list[Task]
    next_cursor: str | None


class Begun(NamedTuple):
    """A task as it was before its execution, and the message of its job."""

    before: Task
    message: Message[Any]


class TaskStore:
    """The table of tasks, for clients."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, task_type: str, description: str, priority: int) -> Task:
        """Store a task that nobody has executed."""
        values = {"task_id": uuid4(), "task_type": task_type, "description": description, "priority": priority}
        with self._transaction() as connection:
            return _task(connection.execute(insert(tasks).values(values).returning(tasks)).mappings().one())

    def find(self, task_id: UUID) -> Task | None:
        """Return a task, or None."""
        with self._transaction() as connection:
            row = connection.execute(select(tasks).where(tasks.c.task_id == task_id)).mappings().one_or_none()
        return None if row is None else _task(row)

    def page(self, status: TaskStatus | None, task_type: str | None, cursor: str | None, limit: int) -> Page:
        """List tasks, the newest first. Raises InvalidRequest for a cursor that is none."""
        query = select(tasks).order_by(tasks.c.created_at.desc(), tasks.c.task_id.desc()).limit(limit + 1)
        if status is not None:
            query = query.where(tasks.c.status == status.value)
        if task_type is not None:
            query = query.where(tasks.c.task_type == task_type)
        if cursor is not None:
            query = query.where(tuple_(tasks.c.created_at, tasks.c.task_id) < tuple_(*_place(cursor)))
        with self._transaction() as connection:
            found = [_task(row) for row in connection.execute(query).mappings()]
        return Page(found[:limit], _cursor(found[limit - 1]) if len(found) > limit else None)

    def change(self, task_id: UUID, wanted: Mapping[str, Any]) -> Task | None:
        """Change a task, and return it, or None. Raises what `changes_of` raises."""
        with self._transaction() as connection:
            task = _locked(connection, task_id)
            changes = changes_of(task, wanted, datetime.now(UTC)) if task else {}
            if not changes:
                return task
            return _task(connection.execute(_update(task_id, changes).returning(tasks)).mappings().one())

    def delete(self, task_id: UUID, cancelled: UUID | None = None) -> bool:
        """Delete a task, and return whether it was there. Raises TaskRunning, but for the job that was cancelled."""
        with self._transaction() as connection:
            task = _locked(connection, task_id)
            if task is None:
                return False
            if cancelled is None or task.job_id != cancelled:
                _refuse_running(task)
            connection.execute(delete(tasks).where(tasks.c.task_id == task_id))
        return True

    def begin(self, task_id: UUID, message_of: Callable[[Task], Message[Any]]) -> Begun | None:
        """Write that a task is in progress by the job that is to be sent next; None where there is no such task.

        Of several at once one begins. Raises TaskRunning, and what `message_of` raises.
        """
        with self._transaction() as connection:
            task = _locked(connection, task_id)
            if task is None:
                return None
            _refuse_running(task)
            message = message_of(task)
            job_id = UUID(message.message_id)
            begun = {"status": TaskStatus.IN_PROGRESS.value, "job_id": job_id, "started_at": func.now()}
            connection.execute(_update(task_id, NOT_EXECUTED | begun))
            run = {"job_id": job_id, "task_id": task_id, "message": encode_message(message)}
            # Whoever has begun may die before the job is sent.
            connection.execute(insert(runs).values(**run, look_at=func.now() + FIRST_LOOK))
        return Begun(task, message)

    def note_sent(self, job_id: UUID) -> None:
        """Note that Redis has a run's job."""
        with self._transaction() as connection:
            connection.execute(update(runs).where(runs.c.job_id == job_id).values(sent_at=func.now()))

    def withdraw(self, job_id: UUID, before: Task) -> None:
        """Put a task back to what it was: its job was refused, and never sent."""
        was = {name: getattr(before, name) for name in (*NOT_EXECUTED, "status")}
        with self._transaction() as connection:
            # The task first, as everywhere: who locks in another order may wait for each other. A reconciler may have
            # sent the job since: then it is the task's.
            unsent = and_(runs.c.job_id == job_id, runs.c.sent_at.is_(None))
            connection.execute(
                _update(before.task_id, was).where(tasks.c.job_id == job_id, select(runs).where(unsent).exists())
            )
            connection.execute(delete(runs).where(unsent))

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        with reaching(self._engine, ANSWER_SECONDS), self._engine.begin() as connection:
            yield connection


def _locked(connection: Connection, task_id: UUID) -> Task | None:
    query = select(tasks).where(tasks.c.task_id == task_id).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _task(row)


def _update(task_id: UUID, changes: Mapping[str, Any]) -> Any:
    values = {name: value.value if isinstance(value, TaskStatus) else value for name, value in changes.items()}
    return update(tasks).where(tasks.c.task_id == task_id).values(**values)


def _refuse_running(task: Task) -> None:
    if task.status is TaskStatus.IN_PROGRESS:
        raise TaskRunning(str(task.task_id), str(task.job_id))


def _task(row: Any) -> Task:
    fields: dict[str, Any] = dict(row)
    fields["status"] = TaskStatus(fields["status"])
    return Task(**fields)


def _cursor(task: Task) -> str:
    return base64.urlsafe_b64encode(f"{task.created_at.isoformat()} {task.task_id}".encode()).decode()


def _place(cursor: str) -> tuple[datetime, UUID]:
    try:
        created_at, _, task_id = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        place = datetime.fromisoformat(created_at), UUID(task_id)
        place[0].astimezone(UTC)
    except (binascii.Error, ValueError, OverflowError):
        raise InvalidRequest([("cursor", "must be the next_cursor of an answer")]) from None
    if place[0].tzinfo is None:
        raise InvalidRequest([("cursor", "must be the next_cursor of an answer")])
    return place
