"""Whatever workers and operators do, in any order: the rows say what Redis says, also where events were folded."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select

from service.broker.dead_letters import DeadLetters
from service.broker.delivery import Delivery
from service.broker.job_acts import JobActs
from service.broker.once import remembered
from service.broker.outcome import Crashed, Dead, Outcome, RetryLater, Snoozed, Succeeded
from service.broker.queue_acts import QueueActs
from service.broker.settlement import released, settlement_of
from service.errors import CallboardError
from service.state.differences import Difference, difference
from service.state.states import State, is_final
from service.state.tables import jobs
from tests.state.test_row_reconciler import FAILURE, QUEUE, World, world

__all__ = ["world"]

LATER_MS = 60_000


class Hands:
    """Does something at random with a queue and its jobs."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.job_ids: list[str] = []
        self.held: list[Delivery] = []
        acts, queues, letters = JobActs(world.broker), QueueActs(world.broker), DeadLetters(world.broker)
        self.acts: dict[Callable[[], object], int] = {
            self.send: 25,
            self.fetch: 20,
            self.settle: 20,
            lambda: acts.cancel(self.any_job(), by="ada"): 7,
            lambda: acts.reschedule(
                self.any_job(), by="ada", priority=self.any_of(None, 3), delay_ms=self.any_time()
            ): 8,
            lambda: self.letter(lambda letter: letters.replay(letter, by="ada", delay_ms=self.any_of(None, 1))): 8,
            lambda: self.letter(lambda letter: letters.delete(letter, by="ada")): 1,
            lambda: queues.purge(QUEUE, by="ada", keep=self.any_of(True, False)): 1,
            world.project: 7,
            lambda: world.broker.wire.fold(QUEUE, 0, 2**40, refusal_ms=1): 4,
        }

    def any_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def any_job(self) -> str:
        return self.random.choice(self.job_ids or ["00000000-0000-0000-0000-000000000000"])

    def any_time(self) -> int | None:
        return self.any_of(None, 0, LATER_MS)

    def step(self) -> None:
        [act] = self.random.choices(list(self.acts), list(self.acts.values()))
        with suppress(CallboardError):  # such as a unique key that another job has
            act()

    def send(self) -> None:
        options = {"idempotency_key": self.any_of("a", "b", None), "tenant": self.any_of("t", None)}
        options |= {"priority": self.any_of(0, 9, None), "unique_key": self.any_of("u", None, None)}
        known = {name: value for name, value in options.items() if value is not None}
        self.job_ids.append(self.world.send(delay_ms=self.any_of(None, None, 1, LATER_MS), **known))

    def fetch(self) -> None:
        broker = self.world.broker
        self.held += broker.fetch(QUEUE, self.random.randint(1, 3))[0]
        while broker.settler._waiting:  # those whose key is taken for good
            broker.settle(QUEUE, [broker.settler._waiting.popleft()])

    def settle(self) -> None:
        if not self.held:
            return
        delivery = self.held.pop(self.random.randrange(len(self.held)))
        outcome: Outcome | None = self.any_of(
            Succeeded('"x"'),
            Succeeded('"x"'),
            Dead(FAILURE),
            RetryLater(delivery.copy_for_retry("t"), self.any_of(0, LATER_MS), FAILURE),
            Snoozed(delivery.copy_unchanged(), self.any_of(0, LATER_MS)),
            Crashed(FAILURE),
            None,
        )
        delivery.outcome = outcome
        settlement = remembered(settlement_of(delivery), {}) if outcome else released(delivery)
        self.world.broker.settle(QUEUE, [settlement])

    def letter(self, act: Callable[[Any], object]) -> None:
        if letter := DeadLetters(self.world.broker).get(self.any_job()):
            act(letter)


def is_right(row: Any, record: dict[str, str] | None) -> bool:
    if row is None or record is None:
        return row is not None and is_final(State(row["state"]))
    # A job that has come due has not been told of.
    return difference(row, record) in (None, Difference.DUE)


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_rows_say_what_redis_says_whatever_is_done(world: World, seed: int) -> None:
    hands = Hands(world, seed)
    for number in range(1, 251):
        hands.step()
        if number % 25:
            continue
        world.project()
        rows = {str(row["job_id"]): row for row in world.connection.execute(select(jobs)).mappings()}
        world.connection.commit()
        told = [(rows.get(job_id), world.broker.find_record(job_id)) for job_id in hands.job_ids]
        assert [(row, record) for row, record in told if not is_right(row, record)] == []
        world.sweep()
        assert {*world.all_counted()} <= {"due"}
