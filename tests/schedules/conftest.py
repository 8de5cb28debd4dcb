"""Schedulers of this process on real servers, with a clock that the test moves."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.messages import decode_message
from service.job import job
from service.schedules import Every, Schedule
from service.schedules.firing import Firing
from service.schedules.ledger import Ledger
from service.schedules.runner import Scheduler
from service.state.database import engine_for

START = datetime(2026, 5, 4, 12, 0, 15, tzinfo=UTC)


class Clock:
    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def tick(self, **by: float) -> None:
        self.now += timedelta(**by)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = engine_for(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    return Ledger(engine)


@pytest.fixture
def actors(broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> RedisBroker:
    """The broker with an actor of schedules, known to all schedulers of the test."""
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="reports.daily", queue="reports")
    def report(*, kind: str = "short") -> None: ...

    return broker


@pytest.fixture
def make(actors: RedisBroker, clock: Clock) -> Callable[..., Scheduler]:
    """A scheduler as another process would have it: it knows nothing but what is in the servers."""

    def scheduler(*schedules: Schedule, ledger: Ledger | None = None, clock: Clock = clock) -> Scheduler:
        return Scheduler(actors, schedules, firing=Firing(actors, ledger), clock=clock)

    return scheduler


def every(seconds: int, name: str = "tick", **policy: object) -> Schedule:
    return Schedule(name, "reports.daily", Every(seconds), **policy)  # type: ignore[arg-type]


def sent(broker: RedisBroker, queue: str = "reports") -> dict[str, tuple[str, str]]:
    """What is in a queue: by job the schedule and its nominal time."""
    found = broker.client.hgetall(Keys(broker.namespace, queue).messages)
    options = {entry.decode(): decode_message(stored.partition(b"\n")[2]).options for entry, stored in found.items()}
    return {entry: (each["schedule"], each["scheduled_for"]) for entry, each in options.items()}


def nominal(broker: RedisBroker) -> list[str]:
    """The nominal times of all jobs in the queue, by the minute and second."""
    return sorted(datetime.fromisoformat(at).strftime("%H:%M:%S") for _, at in sent(broker).values())
