"""The pure part of the projector: what the events of a job make of its row, in whatever order they are told.

The events of a job form a set, each with its number, and the row is what they say in the order of the numbers. Mostly
what comes is newer than all before, so it is added to the row as it is; where it is not, the row is made anew of all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from service.state.event import Event
from service.state.states import TRANSITIONS, State


@dataclass(slots=True)
class JobRow:
    """A job's row in the making. `latest` is the event whose state it has; None where that is stored already."""

    job_id: str
    created: int
    last_sequence: int = 0
    sequence: int = 0
    state: State | None = None
    attempt: int = 0
    started: int | None = None
    worker: str | None = None
    has_message: bool = False
    is_stored: bool = False
    latest: Event | None = None
    #: The event that has the message, the key and the rest of what the job was sent with.
    sent: Event | None = None
    priority: int | None = None
    tenant: str | None = None
    key: str | None = None
    #: Those that changed its state, in order.
    applied: list[Event] = field(default_factory=list[Event])

    @property
    def uuid(self) -> UUID:
        """The job's id."""
        return UUID(self.job_id)


def add(row: JobRow, events: Iterable[Event]) -> None:
    """Add events, in their order, that are newer than all that the row was made of."""
    for event in events:
        row.last_sequence = max(row.last_sequence, event.sequence)
        if event.state is None:
            continue
        if event.message is not None and (event.kind == "replayed" or not row.has_message):
            row.sent, row.has_message = event, True
        row.tenant = row.tenant or event.tenant
        row.key = event.key or row.key
        # A success or a cancellation is never left. A death is, by a replay.
        if row.state is not None and not TRANSITIONS[row.state]:
            continue
        is_anew = row.state is State.DEAD and event.state is not State.DEAD
        if is_anew:  # nothing of the life before is kept
            row.started = row.worker = None
        row.attempt = event.attempt if is_anew else max(row.attempt, event.attempt)
        row.started = row.started or event.started
        row.worker = event.worker or row.worker
        row.priority = event.priority if event.priority is not None else row.priority
        row.state, row.sequence, row.latest = event.state, event.sequence, event
        row.applied.append(event)


def made_anew(row: JobRow, stored: Iterable[Event], late: Iterable[Event]) -> JobRow:
    """Return the row that stored events and late ones make together.

    What is taken from a stored event is in the table already, so that the row says nothing of it.
    """
    late = list(late)
    ours = {event.number for event in late}
    anew = JobRow(row.job_id, row.created, is_stored=row.is_stored)
    add(anew, sorted([*stored, *late], key=lambda event: event.number))
    if anew.latest and anew.latest.number not in ours:
        anew.latest = None
    if anew.sent and anew.sent.number not in ours:
        anew.sent = None
    # Only what is newer than all that was known is a change that anybody could have seen.
    anew.applied = [event for event in anew.applied if event.number in ours and event.sequence > row.sequence]
    anew.last_sequence = max(anew.last_sequence, row.last_sequence)
    return anew
