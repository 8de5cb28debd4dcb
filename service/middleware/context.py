"""The job that the running code belongs to, for actors and for logs."""

import json
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware

from service.broker import RedisBroker
from service.broker.delivery import Delivery, Lease
from service.broker.lost import LeaseLost
from service.broker.message_checks import INHERITED, payload_version_of, scheduled_by
from service.broker.outgoing import FollowUps
from service.errors import NoteError

MOST_NOTE_BYTES = 64 * 1024
HEARTBEAT_SECONDS = 1.0

log = logging.getLogger("callboard.job")


@dataclass(slots=True)
class JobContext:
    """What an actor may know of its own job, and say of it. `attempt` is 1 for the first run."""

    job_id: str
    actor: str
    queue: str
    attempt: int
    #: None outside of a worker, as in a test: what the job says is kept here then.
    broker: RedisBroker | None = None
    lease: Lease | None = None
    #: Options that the jobs it sends take over where they say nothing: see INHERITED.
    inherited: dict[str, str] = field(default_factory=dict[str, str])
    #: Whether the worker's own call of the actor is still to come: it alone carries JSON.
    awaits_call: bool = True
    #: What the worker has in its hands, until it calls the actor's function.
    delivery: Delivery | None = None
    #: Of a schedule's job: the schedule's name, and the due time that it is for.
    scheduled_by: tuple[str, datetime] | None = None
    #: The version that the message's payload has.
    payload_version: int = 1
    follow_ups: FollowUps = field(default_factory=FollowUps)
    _run: Delivery | None = None
    _heard_at: float = 0.0
    _cursor: str | None = None

    @property
    def idempotency_key(self) -> str | None:
        """The job's own key, the same in every attempt: for outside services that take one."""
        return self.lease.key or None if self.lease else None

    @property
    def fencing_token(self) -> int:
        """Rises with every delivery of the queue: what keeps the highest one refuses a holder whose lease was lost."""
        return int(self.lease.token) if self.lease else 0

    @property
    def tenant(self) -> str | None:
        """For whom the job works: the option `tenant` of its send, or of that of the job that sent it."""
        return self.inherited.get("tenant")

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job: it ends as that. Code that nothing can interrupt may look.

        In a process of its own (`isolation="process"`) it is never true: that process is ended at once.
        """
        return self._run is not None and self._run.is_cancelled

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that has sent the job."""
        return self.scheduled_by[0] if self.scheduled_by else None

    @property
    def scheduled_for(self) -> datetime | None:
        """The due time that a schedule's job is for, in UTC, whenever it runs."""
        return self.scheduled_by[1] if self.scheduled_by else None

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the job is, for all who look. Costs the job nothing: the newest is sent soon, others are not."""
        if self.broker and self.lease:
            self.broker.notes.progress(self.lease, {"done": done, "total": total, "note": note[:1000]})

    def log(self, message: str, /, **fields: Any) -> None:
        """Write a line to the job's own log, and to the worker's. Raises NoteError for fields without a JSON form."""
        line = {"at": int(time.time() * 1000), "attempt": self.attempt, "message": message, "fields": fields}
        _to_json("log", line)
        log.info(message, extra={"job_id": self.job_id, "actor": self.actor, **_named_apart(fields)})
        if self.broker and self.lease:
            self.broker.notes.line(self.lease, line)

    def checkpoint(self, cursor: object) -> None:
        """Keep up to 64 KiB of JSON that a later attempt finds in `resumed_from`. It is in Redis when this returns.

        Raises NoteError, BrokerUnavailable, and LeaseLost where the job runs elsewhere by now.
        """
        self._cursor = _to_json("checkpoint", cursor)
        if self.broker and self.lease and not self.broker.keep_checkpoint(self.lease, self._cursor):
            raise LeaseLost

    @property
    def resumed_from(self) -> Any:
        """What this job has kept last with `checkpoint`, in whichever attempt, or None. Raises BrokerUnavailable."""
        if self._cursor is None and self.broker and self.lease:
            self._cursor = self.broker.find_checkpoint(self.lease)
        return None if self._cursor is None else json.loads(self._cursor)

    def heartbeat(self) -> None:
        """Learn between two steps whether the job is still this worker's; Redis is asked once a second at most.

        The lease is renewed without this too. Raises LeaseLost, and BrokerUnavailable.
        """
        if self.broker and self.lease and time.monotonic() - self._heard_at >= HEARTBEAT_SECONDS:
            if not self.broker.extend(self.lease):
                raise LeaseLost
            self._heard_at = time.monotonic()


def _to_json(what: str, value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NoteError(f"{what}() takes what has a JSON form: {error}") from None
    if len(text) > MOST_NOTE_BYTES:
        raise NoteError(f"{what}() takes up to {MOST_NOTE_BYTES} bytes of JSON, not {len(text)}: keep a reference")
    return text


def _named_apart(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as `extra` of a log record takes them: some names are the record's own."""
    own = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "job_id", "actor"}
    return {f"{name}_" if name in own else name: value for name, value in fields.items()}


_current: ContextVar[JobContext | None] = ContextVar("current_job", default=None)


def set_current_job(context: JobContext | None) -> None:
    """Say which job the code that follows runs for."""
    _current.set(context)


def current_job_or_none() -> JobContext | None:
    """Return the job that this code runs for, or None outside of one."""
    return _current.get()


class CurrentJob(Middleware):
    """Sets the context before a job and clears it after, since worker threads are used again."""

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        assert isinstance(message, Delivery)
        assert isinstance(broker, RedisBroker)
        actor = broker.get_actor(message.actor_name)
        lease = message.lease
        context = JobContext(message.message_id, actor.actor_name, message.queue_name, message.attempt, broker, lease)
        context.delivery = context._run = message  # pyright: ignore[reportPrivateUsage]
        if options := message.options:
            context.inherited = {name: options[name] for name in INHERITED if options.get(name)}
            context.payload_version = payload_version_of(options)
            context.scheduled_by = scheduled_by(options)
        set_current_job(context)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        _current.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        _current.set(None)
