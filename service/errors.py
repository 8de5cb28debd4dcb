"""The whole error tree. Every error that Callboard raises on purpose is here; this module imports nothing.

    CallboardError
    ├── SettingsError            a setting is missing or wrong: the process must not start
    ├── DeclarationError         an actor is declared in a way that can't work: raised at import
    ├── PayloadError             a payload does not fit its actor: raised at `send()`
    ├── InvalidRequest           a request over HTTP does not have the shape of one
    ├── IdempotencyKeyReused     a key came with another request before
    ├── IdempotencyKeyInFlight   the first request with a key has not ended
    ├── UnknownJobType           no actor answers to this type
    ├── UnknownTaskType          no actor can carry out a task of this type
    ├── JobExists                a send is refused, since an unfinished job has its unique key
    ├── Conflict                 what is asked for can't be done to a thing that is as it is now
    │   ├── WrongState           an act does not fit the state that its job is in
    │   └── TaskRunning          a task is in progress, and what was asked for has to wait for its end
    ├── UnknownSchedule          there is no schedule of this name
    ├── UnreadableMessage        what is stored as a message is none that this release can run
    ├── BatchUnfinished          some jobs of a batch are stored, and others are not
    ├── BrokerUnavailable        Redis can't be reached or does not answer in time
    │   └── QueueFull            too much that has happened is not in PostgreSQL yet
    ├── TooManyFollowUps         a job sends more than can wait for its success
    ├── HistoryUnavailable       PostgreSQL can't be reached
    ├── ServiceBusy              more requests than this process can take
    ├── NotAuthenticated         a request has no key, or none that is valid
    ├── MissingScope             a key may not do what is asked for
    ├── NotForTenants            a key of a tenant asks for what concerns all
    ├── NotFromHere              an open API is asked by another machine, or by a page of another site
    ├── TooManyRequests          a key asks more often than it may
    ├── KeysUnavailable          a key can't be checked now
    ├── AuditUnavailable         an act can't be written down, and so is not done
    ├── SoftTimeLimit            raised in a job that has run for its soft_timeout
    ├── Expired                  a job has waited for longer than its `expires`
    ├── NoteError                what a job says of itself has no JSON form, or is too long
    └── JobError                 what an actor raises to say how its failure is to be treated
        ├── Permanent            do not retry
        │   ├── AuthenticationFailed   the other side does not know us
        │   └── Declined         the other side knows us and says no
        ├── RetryAfter           retry, and not before so many seconds
        └── Snooze               run later, with no attempt counted

Each class carries `code` (stable, for logs and clients), `status` (HTTP) and `retryable` (may the caller try again
unchanged).
"""


class CallboardError(Exception):
    """The base of every error that Callboard raises on purpose."""

    code = "error"
    status = 500
    retryable = False


class SettingsError(CallboardError):
    """A setting is missing or wrong. The message names the variable, the value and an example."""

    code = "settings"


class DeclarationError(CallboardError):
    """An actor, alias or queue is declared in a way that can't work."""

    code = "declaration"


class PayloadError(CallboardError):
    """A payload does not fit its actor.

    `problems` is a list of (path, message); a path is dotted from the payload's top, such as `items.0.price`. The text
    lists the first of them.
    """

    code = "invalid-payload"
    status = 422

    def __init__(self, actor_name: str, problems: list[tuple[str, str]]) -> None:
        self.actor_name = actor_name
        self.problems = problems
        lines = list_problems([(path or "payload", message) for path, message in problems])
        super().__init__(f"Invalid payload for {actor_name}: {lines}")


class InvalidRequest(CallboardError):
    """A request over HTTP does not have the shape of one. `problems` is as in PayloadError."""

    code = "invalid-request"
    status = 422

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__(list_problems(problems))


class IdempotencyKeyReused(CallboardError):
    """A request over HTTP has a key that came with another request before."""

    code = "idempotency-key-reused"
    status = 422


class IdempotencyKeyInFlight(CallboardError):
    """A request over HTTP has a key whose first request has not ended."""

    code = "idempotency-key-in-flight"
    status = 409
    retryable = True


class UnknownJobType(CallboardError):
    """No actor, and no alias of one, has this name."""

    code = "unknown-job-type"
    status = 422

    def __init__(self, job_type: str, known: list[str]) -> None:
        self.job_type = job_type
        self.known = known
        super().__init__(f"Unknown job type: {shorten(job_type)}")


class UnknownTaskType(CallboardError):
    """No actor that takes what a task has, and no alias of one, has this name."""

    code = "unknown-task-type"
    status = 422

    def __init__(self, task_type: str, known: list[str]) -> None:
        self.known = known
        names = shorten(", ".join(known)) if known else "none"
        super().__init__(f"Unknown task type: {shorten(task_type)}; known: {names}")


class JobExists(CallboardError):
    """A send is refused: the job `job_id` has the same unique key, in a state that counts. Nothing was stored."""

    code = "job-exists"
    status = 409

    def __init__(self, job_id: str, key: str) -> None:
        self.job_id = job_id
        self.key = key
        super().__init__(f"Job {job_id} has the unique key {shorten(key)}")


class Conflict(CallboardError):
    """What is asked for can't be done to a thing that is as it is now, such as a task that has ended."""

    code = "conflict"
    status = 409


class WrongState(Conflict):
    """An act does not fit the state that its job is in. Nothing was changed."""

    code = "wrong-state"

    def __init__(self, job_id: str, state: str, problem: str) -> None:
        self.job_id = job_id
        self.state = state
        super().__init__(f"Job {shorten(job_id)} is {state}, and {problem}")


class TaskRunning(Conflict):
    """A task is in progress by the job `job_id`: it is not executed twice at once, nor changed meanwhile."""

    code = "task-in-progress"

    def __init__(self, task_id: str, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"Task {task_id} is in progress, by job {job_id}")


class UnknownSchedule(CallboardError):
    """There is no schedule of this name."""

    code = "unknown-schedule"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"Schedule {shorten(name)} not found")


class UnreadableMessage(CallboardError):
    """What is stored as a message is none that this release can run: it becomes a dead letter."""

    code = "unreadable-message"
    status = 422


class BrokerUnavailable(CallboardError):
    """Redis can't be reached or did not answer in time.

    `may_be_stored` says whether a message that was being sent may have reached Redis all the same: False when no
    connection could be made or Redis refused, True when one broke or timed out after the command had gone out.
    """

    code = "broker-unavailable"
    status = 503
    retryable = True

    def __init__(self, message: str, *, may_be_stored: bool) -> None:
        self.may_be_stored = may_be_stored
        super().__init__(message)


class BatchUnfinished(CallboardError):
    """Some jobs of a batch are stored, and others are not."""

    code = "batch-unfinished"
    status = 503
    retryable = True

    def __init__(self, failed: int, of: int, first: Exception, stored: list[str], uncertain: list[str]) -> None:
        super().__init__(f"{failed} of {of} jobs were not stored; the first: {first}")
        #: Ids of the jobs that are stored, and of those that may be.
        self.stored = stored
        self.uncertain = uncertain


class QueueFull(BrokerUnavailable):
    """A send is refused: what has happened on its queue waits for PostgreSQL, and fills what Redis may keep of it.

    Nothing was stored. The send succeeds when the projector has stored enough.
    """

    code = "full"

    def __init__(self, message: str) -> None:
        super().__init__(message, may_be_stored=False)


class TooManyFollowUps(CallboardError):
    """A job sends more than can be kept until it succeeds."""

    code = "too-many-follow-ups"
    status = 422


class NoteError(CallboardError):
    """What a job says of itself has no JSON form, or is too long."""

    code = "note"
    status = 422


class HistoryUnavailable(CallboardError):
    """PostgreSQL can't be reached, and what was asked for is not in Redis."""

    code = "history-unavailable"
    status = 503
    retryable = True


class ServiceBusy(CallboardError):
    """More requests came than this process can take."""

    code = "busy"
    status = 503
    retryable = True


class NotAuthenticated(CallboardError):
    """A request has no key, or none that is valid. The text never says which part of a key is wrong."""

    code = "not-authenticated"
    status = 401


class MissingScope(CallboardError):
    """A key may not do what is asked for: it has not the scope `scope`."""

    code = "missing-scope"
    status = 403

    def __init__(self, scope: str) -> None:
        self.scope = scope
        super().__init__(f"This needs a key with the scope {scope}")


class NotForTenants(CallboardError):
    """A key of a tenant asks for what concerns all tenants."""

    code = "not-for-tenants"
    status = 403

    def __init__(self) -> None:
        super().__init__("This concerns all tenants, and needs a key that belongs to none")


class NotFromHere(CallboardError):
    """An API without keys is asked by another machine, through a proxy, or by a page of another site."""

    code = "not-from-here"
    status = 403


class TooManyRequests(CallboardError):
    """A key asks more often than it may."""

    code = "too-many-requests"
    status = 429
    retryable = True

    def __init__(self, retry_after_seconds: int) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(f"This key asks more often than it may; again in {retry_after_seconds} s")


class KeysUnavailable(CallboardError):
    """A key that was not seen lately can't be checked, since PostgreSQL can't be asked."""

    code = "keys-unavailable"
    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__("Keys that were not used lately can't be checked at the moment")


class AuditUnavailable(CallboardError):
    """An act can't be written into the audit log. Nothing of it was done."""

    code = "audit-unavailable"
    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__("Nothing was done: the audit log can't be written at the moment")


class SoftTimeLimit(CallboardError):
    """Raised in a job, once, when it has run for its `soft_timeout`: it may clean up until its `timeout` ends it."""

    code = "timed-out"

    def __init__(self, message: str = "The job has run for as long as its soft_timeout allows") -> None:
        super().__init__(message)


class Expired(CallboardError):
    """A job has waited in its queue for longer than its `expires`, and does not run any more."""

    code = "expired"


class JobError(CallboardError):
    """Raised by an actor to say how its failure is to be treated."""

    code = "job"


class Permanent(JobError):
    """The job can never succeed: it fails now, whatever attempts are left."""

    code = "permanent"


class AuthenticationFailed(Permanent):
    """The other side does not take our key, password or certificate: no repetition changes that."""

    code = "authentication-failed"


class Declined(Permanent):
    """The other side has understood and says no, as a bank of a card."""

    code = "declined"


class RetryAfter(JobError):
    """The attempt failed, and the next is to start `seconds` from now, as the other side has asked."""

    code = "retry-after"

    def __init__(self, seconds: float, message: str = "") -> None:
        self.retry_after = _seconds(seconds)
        super().__init__(seconds, message)

    def __str__(self) -> str:
        return self.args[1] or f"to be tried again after {self.retry_after} s"


class Snooze(JobError):
    """Not now: the job is to run `seconds` from now, and this run is no attempt."""

    code = "snooze"

    def __init__(self, seconds: float) -> None:
        self.seconds = _seconds(seconds)
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"to be run in {self.seconds} s"


def _seconds(given: object) -> float:
    if not isinstance(given, int | float):
        raise TypeError(f"seconds={given!r} must be a number")
    return given


PROBLEMS_LISTED = 20
TEXT_LISTED = 200


def list_problems(problems: list[tuple[str, str]]) -> str:
    """Return the first of many problems as text, and the number of the others."""
    lines = [f"{shorten(path)}: {shorten(message)}" for path, message in problems[:PROBLEMS_LISTED]]
    left_out = len(problems) - len(lines)
    return "; ".join([*lines, f"and {left_out} more"] if left_out else lines)


def shorten(text: str) -> str:
    """Return a text that a caller chose, fit to be shown again."""
    return text if len(text) <= TEXT_LISTED else f"{text[:TEXT_LISTED]}…"


def without_middle(text: str, most: int) -> str:
    """Return a text of at most so many characters: of a longer one its beginning and its end."""
    if len(text) <= most:
        return text
    note = f"\n({len(text)} characters, of which the middle is left out)\n"
    half = (most - len(note)) // 2
    return f"{text[:half]}{note}{text[-half:]}"
