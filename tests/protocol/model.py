"""A plain model of one queue: what the scripts have to do, said once more without Redis."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from service.broker.unique_keys import UniqueKey

PRIORITY_STEP = 2**49


class Place(StrEnum):
    """Where a message that is not settled for good is."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    WAITING = "waiting"


@dataclass
class Item:
    """One message in the queue."""

    name: str
    message_id: str
    score: int
    created: int
    attempt: int
    most: int
    key: str = ""
    unique: UniqueKey | None = None
    place: Place = Place.READY
    lapses: int = 0
    begun: bool = False
    due: int = 0
    deadline: int = 0
    token: int = 0
    is_duplicate: bool = False
    #: Of a duplicate, the record that it met: another one of its fetch may claim the key behind it.
    met: "Known | None" = None
    #: Whether it was cancelled while it was held.
    is_cancelled: bool = False
    #: The attempt of each delivery that failed, 0 for a replay.
    log: list[int] = field(default_factory=list)

    @property
    def claim(self) -> "Known":
        return Known("claimed", self.token, self.name)


@dataclass(frozen=True)
class Owner:
    """Who has a unique key: until then, or 0; and whether also after its end."""

    name: str
    until: int
    counts_ended: bool


@dataclass
class Letter:
    """A dead letter."""

    item: Item
    died: int
    log: list[int]


@dataclass(frozen=True)
class Known:
    """What is known of a key: `claimed` with a token and a name, or `done` or `failed` until then with a job."""

    word: str
    number: int
    owner: str


@dataclass(frozen=True)
class Sent:
    """What a sender says of one message."""

    message_id: str
    priority: int
    attempt: int
    most: int
    key: str


@dataclass
class Model:
    """One queue.

    `bound` is how many lapsed, and how many due messages one fetch returns; `together` how many duplicates come back.
    """

    now: int
    lease_ms: int
    bound: int
    together: int
    counter: int = 0
    is_paused: bool = False
    items: dict[str, Item] = field(default_factory=dict)
    dead: dict[str, "Letter"] = field(default_factory=dict)
    finals: set[str] = field(default_factory=set)
    once: set[str] = field(default_factory=set)
    keys: dict[str, Known] = field(default_factory=dict)
    #: Redis forgets some of those that count no more.
    unique: dict[str, Owner] = field(default_factory=dict)
    #: Of the call that is under way: keys whose entries end or go back, with the claim and what is kept in its place.
    left: list[tuple[str, Known | None, Known | None]] = field(default_factory=list)
    #: For each name the states of each of its lives: a finished job may be sent again.
    lives: dict[str, list[list[str]]] = field(default_factory=dict)

    def send(self, sent: list[Sent], delay_ms: int | None, once: bool) -> bool:
        """Put messages in; a copy of one that is still here gets a name of its own."""
        if once and sent[0].message_id in self.once:
            return False
        if once:
            self.once.add(sent[0].message_id)
        last = self.counter + len(sent)
        for number, one in enumerate(sent):
            name = one.message_id
            if name in self.items:
                name = f"{name}~{last - number}"
            score = one.priority * PRIORITY_STEP + self.counter + 1 + number
            item = Item(name, one.message_id, score, self.now, one.attempt, one.most, one.key)
            if delay_ms is not None:
                item.place, item.due = Place.DELAYED, self.now + delay_ms
            self.items[name] = item
            self.lives.setdefault(name, []).append(["pending" if delay_ms is None else "scheduled"])
        self.counter = last
        return True

    def send_unique(self, one: Sent, unique: UniqueKey, delay_ms: int | None) -> tuple[str, str]:
        """Put a message in, unless another one has its unique key. Returns what became of it, and whom it has met."""
        met = self._meets(one.message_id, unique)
        place = None
        if met and (unique.on_conflict == "keep" or met not in self.names(Place.READY, Place.DELAYED, Place.WAITING)):
            return "exists", met
        if met:
            item = self.items[met]
            self.left = [(item.key, None, None)] if item.key and item.place is not Place.WAITING else []
            if unique.on_conflict == "reschedule":
                item.place = Place.READY if delay_ms is None else Place.DELAYED
                item.due = self.now + (delay_ms or 0)
                state = "pending" if delay_ms is None else "scheduled"
                self._event(item, "retrying" if item.attempt > 1 else state)
                self.bring_back()
                return "rescheduled", met
            self._take_out(item, "cancelled")
            self.bring_back()
            place = item.score if item.score // PRIORITY_STEP == one.priority else None
        self._own(one.message_id, unique)
        self.send([one], delay_ms, once=False)
        item = self.items[one.message_id]
        item.unique, item.score = unique, place or item.score
        return ("replaced", met) if met else ("stored", "")

    def _meets(self, name: str, unique: UniqueKey) -> str:
        owner = self.unique.get(unique.key)
        if owner is None or owner.name == name or 0 < owner.until <= self.now:
            return ""
        if item := self.items.get(owner.name):
            state = "running" if item.place is Place.LEASED else "waiting"
        else:
            state = "ended" if owner.counts_ended else ""
        return owner.name if state in unique.states else ""

    def _own(self, name: str, unique: UniqueKey) -> None:
        until = self.now + unique.window_ms if unique.window_ms else 0
        self.unique[unique.key] = Owner(name, until, "ended" in unique.states)

    def _take_out(self, item: Item, state: str) -> None:
        """End what nobody holds: its unique key is free, also where that counts after an end."""
        if item.unique and (owner := self.unique.get(item.unique.key)) and owner.name == item.name:
            del self.unique[item.unique.key]
        self._end(item, state)

    def counting(self) -> dict[str, Owner]:
        """The unique keys that somebody has."""
        return {
            key: owner
            for key, owner in self.unique.items()
            if owner.name in self.items or (owner.counts_ended and owner.until > self.now)
        }

    def fetch(self, count: int) -> tuple[list[Item], bool]:
        """Return what lapsed and what is due, then lease. Says as well whether there may be more."""
        found = self._first(Place.LEASED, lambda item: item.deadline)[: self.bound]
        lapsed = [item for item in found if item.deadline <= self.now]
        self.left = [(item.key, item.claim, None) for item in lapsed if item.key]
        self.bring_back()
        for item in lapsed:
            if item.is_cancelled:
                self._end(item, "cancelled")
                continue
            self._lapse(item, counts=item.begun or (item.lapses == 0 and item.most > 1))
            if item.name in self.items:
                self._event(item, "pending")
            elif item.key:
                self.left = [(item.key, None, None)]
                self.bring_back()
        for item in self._first(Place.DELAYED, lambda item: item.due)[: self.bound]:
            if item.due <= self.now:
                item.place = Place.READY
        taken = [] if self.is_paused else self._first(Place.READY, lambda item: item.score)[:count]
        leased: list[Item] = []
        for item in taken:
            known = self._hindrance(item)
            if known and known.word == "claimed":
                item.place = Place.WAITING
                self._event(item, "waiting")
                continue
            leased.append(item)
            item.place, item.token = Place.LEASED, self.counter + len(leased)
            item.deadline = self.now + self.lease_ms
            item.begun, item.is_duplicate, item.met = False, known is not None, known
            if item.key and not known:
                self.keys[item.key] = item.claim
            self._event(item, "running")
        self.counter += len(taken)
        if not taken:
            self._forget(self.bound)
        return leased, len(taken) == count and not self.is_paused

    def _hindrance(self, item: Item) -> Known | None:
        known = self.keys.get(item.key)
        if known is None:
            return None
        if known.word == "claimed":
            return known if self.holds(known.owner, known.number) else None
        is_own_failure = known.word == "failed" and known.owner == item.message_id
        return known if known.number > self.now and not is_own_failure else None

    def bring_back(self) -> None:
        """End a call: free or keep the keys of what has left, and return what waited for them to ready."""
        for key, claim, kept in self.left:
            if claim and self.keys.get(key) == claim:
                if kept:
                    self.keys[key] = kept
                else:
                    del self.keys[key]
        for key in {key for key, _, _ in self.left}:
            known = self.keys.get(key)
            if known is None or known.word != "claimed":
                waiting = [item for item in self._first(Place.WAITING, lambda item: item.score) if item.key == key]
                for item in waiting[: self.together if known else 1]:
                    item.place = Place.READY
        self.left = []

    def settled(self) -> None:
        """End a call of settlements."""
        count = len(self.left)
        if count:
            self.bring_back()
            self._forget(2 * count)

    def _forget(self, count: int) -> None:
        kept = [(known.number, key) for key, known in self.keys.items() if known.word != "claimed"]
        for until, key in sorted(kept)[:count]:
            if until <= self.now:
                del self.keys[key]

    def soonest(self) -> int | None:
        """The ms until something comes due or lapses."""
        times = [item.due for item in self.items.values() if item.place is Place.DELAYED]
        times += [item.deadline for item in self.items.values() if item.place is Place.LEASED]
        return max(min(times) - self.now, 0) if times else None

    def holds(self, name: str, token: int) -> bool:
        """Whether this delivery may still settle."""
        item = self.items.get(name)
        return item is not None and item.place is Place.LEASED and item.token == token

    def settle(self, name: str, token: int, outcome: str, delay_ms: int, keep_ms: int | None = None) -> bool:
        """Carry out an outcome, or nothing where the delivery is not the newest. `settled` ends the call."""
        if not self.holds(name, token):
            return False
        item = self.items[name]
        if item.key:
            word = "done" if outcome == "done" else "failed"
            keeps = keep_ms is not None and (not item.is_cancelled or outcome == "done")
            kept = None if keep_ms is None or not keeps else Known(word, self.now + keep_ms, item.message_id)
            self.left.append((item.key, item.claim, kept))
        match "cancelled" if item.is_cancelled else outcome:
            case "done":
                self._end(item, "succeeded")
            case "cancelled":
                self._end(item, "cancelled")
            case "dead":
                item.log.append(item.attempt)
                self._end(item, "dead")
            case "retry":
                item.log.append(item.attempt)
                item.place, item.due = Place.DELAYED, self.now + delay_ms
                item.attempt, item.lapses = item.attempt + 1, 0
                self._event(item, "retrying")
            case "snooze":
                item.place, item.due = Place.DELAYED, self.now + delay_ms
                self._event(item, "scheduled")
            case "release":
                item.place = Place.READY
                self._event(item, "pending")
            case "crashed":
                self._lapse(item, counts=True)
                if name in self.items:
                    self._event(item, "pending")
        return True

    def renew(self, held: list[tuple[str, int]]) -> list[str]:
        """Extend leases. Returns the names of the lost ones."""
        for name, token in held:
            if self.holds(name, token):
                self.items[name].deadline = self.now + self.lease_ms
        return [name for name, token in held if not self.holds(name, token)]

    def names(self, *places: Place) -> set[str]:
        return {name for name, item in self.items.items() if item.place in places}

    def _first(self, place: Place, by: Callable[[Item], int]) -> list[Item]:
        """As a sorted set orders: by score, then by name."""
        found = [item for item in self.items.values() if item.place is place]
        return sorted(found, key=lambda item: (by(item), item.name))

    def replay(self, name: str, died: int, delay_ms: int | None) -> int:
        """Put a dead letter back, as of its send but for the attempts. Returns as replay.lua, and -4 for JobExists."""
        letter = self.dead[name]
        if letter.died != died:
            return -1
        old = letter.item
        if old.unique and self.is_taken(name, old.unique.key):
            return -4
        if name in self.items:
            return -2
        item = Item(
            name, old.message_id, old.score, old.created, 1, old.most, old.key, old.unique, log=[*letter.log, 0]
        )
        if old.unique:
            self._own(name, old.unique)
        if delay_ms is not None:
            item.place, item.due = Place.DELAYED, self.now + delay_ms
        self.items[name] = item
        del self.dead[name]
        self.finals.discard(name)
        if self.lives[name][-1][-1] != "dead":
            self.lives[name].append([])  # it was sent again, and that one has succeeded
        self._event(item, "pending" if delay_ms is None else "scheduled")
        return 1

    def is_taken(self, name: str, key: str) -> bool:
        """Whether another one has a unique key."""
        owner = self.unique.get(key)
        if owner is None or owner.name == name or 0 < owner.until <= self.now:
            return False
        return owner.counts_ended or owner.name in self.items

    def begin(self, name: str, token: int) -> bool:
        """Note that a suspect begins."""
        if not self.holds(name, token) or self.items[name].is_cancelled:
            return False
        self.items[name].begun = True
        return True

    def cancel(self, name: str) -> str | None:
        """End a job, or mark it where it is held. Returns what cancel.lua does, of a final event its state."""
        if name not in self.items:
            return self.lives[name][-1][-1] if name in self.finals else None
        item = self.items[name]
        if item.place is Place.LEASED and item.deadline > self.now:
            item.is_cancelled = True
            return "running"
        self._take_out(item, "cancelled")
        if item.key and item.place is not Place.WAITING:
            self.left = [(item.key, item.claim if item.place is Place.LEASED else None, None)]
            self.bring_back()
        return "cancelled"

    def reschedule(self, name: str, priority: int | None, due: int | None) -> str:
        """Give a job that waits another place. Returns what reschedule.lua does first, and then its state."""
        if name not in self.items:
            return "gone"
        item = self.items[name]
        if item.place is Place.LEASED:
            return "running"
        if priority is not None:
            item.score = priority * PRIORITY_STEP + item.score % PRIORITY_STEP
        before = item.place
        if due is not None:
            if due > self.now:
                item.place, item.due = Place.DELAYED, due
            elif before is Place.DELAYED:
                item.place = Place.READY
        if before is Place.READY and item.place is Place.DELAYED and item.key:
            self.left = [(item.key, None, None)]
            self.bring_back()
        state = "scheduled" if item.place is Place.DELAYED else "pending"
        state = "retrying" if item.attempt > 1 else state
        self._event(item, "waiting" if item.place is Place.WAITING else state)
        return self.lives[name][-1][-1]

    def purge(self, *, keep: bool) -> int:
        """End all that waits."""
        found = [item for item in self.items.values() if item.place is not Place.LEASED]
        for item in found:
            if keep:
                item.log.append(item.attempt)
            self._take_out(item, "dead" if keep else "cancelled")
        return len(found)

    def _lapse(self, item: Item, *, counts: bool) -> None:
        item.log.append(item.attempt)
        item.lapses += counts
        item.place = Place.READY
        if item.lapses >= item.most:
            self._end(item, "dead")

    def _end(self, item: Item, state: str) -> None:
        self._event(item, state)
        self.finals.add(item.name)
        if state == "dead":
            self.dead[item.name] = Letter(item, self.now, item.log)
        del self.items[item.name]

    def _event(self, item: Item, state: str) -> None:
        self.lives[item.name][-1].append(state)
