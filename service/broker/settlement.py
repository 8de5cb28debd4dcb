"""An outcome in the words of settle.lua."""

from typing import NamedTuple

from service.broker import events
from service.broker.delivery import Delivery, Lease
from service.broker.messages import copy_message
from service.broker.outcome import BY_ITSELF, Cancelled, Crashed, Dead, Failure, Reason, RetryLater, Snoozed, Succeeded
from service.broker.outgoing import FollowUp


class Settlement(NamedTuple):
    """What is to become of one entry: see settle.lua for the outcomes, and for what event and data are."""

    lease: Lease
    outcome: str
    event: str
    data: bytes | None = None
    #: What the job has sent, and what goes out in the same step.
    follow_ups: tuple[FollowUp, ...] = ()
    #: For how long the idempotency key that the delivery holds stays taken after "done" or "dead"; None for not at all.
    keep_ms: int | None = None

    def packed(self) -> bytes:
        """Return it as settle.lua takes it."""
        lease = self.lease
        keep = "" if self.keep_ms is None else f":{self.keep_ms}"
        head = f"{lease.entry} {lease.token} {self.outcome}{keep} {self.event}".encode()
        return head if self.data is None else b"%b\n%b" % (head, self.data)

    def packed_follow_ups(self) -> list[bytes]:
        """Return what goes out as settle.lua takes it, after the settlement itself."""
        lease = self.lease
        head = f"{lease.entry} {lease.token} after -\n".encode()
        # Of one delivery only one settlement is taken: so the token makes a nonce.
        named = enumerate(self.follow_ups)
        return [head + each.packed(f"{lease.entry}:{lease.token}:{number}") for number, each in named]

    def size(self) -> int:
        """Bytes of what it carries."""
        return len(self.data or b"") + sum(each.size() for each in self.follow_ups)


def settlement_of(delivery: Delivery) -> Settlement:  # noqa: PLR0911 - one for each outcome
    """Put the outcome of a delivery into the words of the script."""
    lease, actor = delivery.lease, delivery.actor_name
    if delivery.outcome is None:
        # The chain has said nothing, since a hook failed or was interrupted in it: how the actor ended is known.
        failure = delivery.failure()
        delivery.outcome = Dead(failure) if failure else Succeeded("null")
    match delivery.outcome:
        case Succeeded(result):
            event = events.ended(lease, "succeeded", actor, result=result, **origin_of(delivery))
            return Settlement(lease, "done", event, follow_ups=tuple(delivery.follow_ups.all))
        case Cancelled(failure):
            return cancelled(lease, actor, failure, **origin_of(delivery))
        case Dead() | RetryLater() | Snoozed() | Crashed() if delivery.handed_back:
            return released(delivery)
        case Dead(failure, reason):
            return dead(lease, actor, failure, reason, delivery.dead_letter, **origin_of(delivery))
        case RetryLater(message, delay_ms, failure):
            event = events.settled(lease, "retrying", actor, error=failure.to_json(), delay_ms=str(delay_ms))
            data = _lines(failure, b"%d %s" % (delay_ms, copy_message(message).encode()))
            return Settlement(lease, "retry", event, data)
        case Snoozed(message, delay_ms):
            return left_to_others(lease, actor, copy_message(message).encode(), delay_ms)
        case Crashed(failure):
            if lease.lapses + 1 >= lease.max_deliveries:
                return dead(lease, actor, failure, Reason.CRASHED, delivery.dead_letter, **origin_of(delivery))
            event = events.settled(lease, "pending", actor, error=failure.to_json())
            return Settlement(lease, "crashed", event, failure.brief().encode())


def origin_of(delivery: Delivery) -> dict[str, str]:
    """Return tenant and parent for the final event: it outlives its message in Redis, and who may see it is asked."""
    options = delivery.options
    return {name: options[name] for name in events.ORIGIN if options.get(name)} if options else {}


def dead(lease: Lease, actor: str, failure: Failure, reason: Reason, message: bytes = b"", **origin: str) -> Settlement:
    """The entry becomes a dead letter: with the bytes that are stored, or with other ones."""
    event = events.ended(lease, "dead", actor, reason=reason, error=failure.to_json(), **origin)
    return Settlement(lease, "dead", event, _lines(failure, message))


def cancelled(lease: Lease, actor: str, failure: Failure = BY_ITSELF.failure, **origin: str) -> Settlement:
    """The entry is cancelled: where somebody has asked for that, with what he has said."""
    return Settlement(lease, "cancelled", events.ended(lease, "cancelled", actor, error=failure.to_json(), **origin))


def _lines(failure: Failure, rest: bytes) -> bytes:
    return b"%b\n%b" % (failure.brief().encode(), rest)


def left_to_others(lease: Lease, actor: str, message: bytes, delay_ms: int) -> Settlement:
    """The entry waits, with no attempt counted: somebody else may be able to run it, or it may run better later."""
    event = events.settled(lease, "scheduled", actor, delay_ms=str(delay_ms))
    return Settlement(lease, "snooze", event, b"%d %s" % (delay_ms, message))


def released(delivery: Delivery) -> Settlement:
    """The entry goes back to its place: it was fetched and not started."""
    return unreceived(delivery.lease, delivery.actor_name)


def unreceived(lease: Lease, actor: str) -> Settlement:
    """The entry goes back to its place: it was leased, and nobody here has it."""
    return Settlement(lease, "release", events.settled(lease, "pending", actor))
