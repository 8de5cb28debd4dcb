"""The projector is killed over and over while jobs run: nothing is lost, and nothing is told twice."""

import os
import random
import subprocess
import sys
import time
from collections import Counter

import dramatiq
from dramatiq.message import Message
from sqlalchemy import func, select

from service.broker import RedisBroker
from service.broker.keys import Keys
from service.broker.outcome import Succeeded
from service.broker.settlement import settlement_of
from service.state.database import engine_for
from service.state.tables import events, jobs
from tests.servers import eventually

QUEUE = "email"
KILLS = 5


def test_a_projector_that_is_killed_loses_and_repeats_nothing(broker: RedisBroker, database_url: str) -> None:
    @dramatiq.actor(broker=broker, actor_name="t.act", queue_name=QUEUE)
    def act() -> None: ...

    engine = engine_for(database_url)
    environment = {**os.environ, "DATABASE_URL": database_url}
    chance = random.Random(7)
    sent = 0

    def stored() -> int:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(events)).scalar_one()

    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-m", "service.cli", "projector"], env=environment)
        try:
            before = stored()
            assert not broker.send_many([Message(QUEUE, "t.act", (), {}, {}) for _ in range(3000)]).failed
            sent += 3000
            while deliveries := broker.fetch(QUEUE, 200)[0]:
                for delivery in deliveries:
                    delivery.outcome = Succeeded("1")
                broker.settle(QUEUE, [settlement_of(delivery) for delivery in deliveries])
            eventually(lambda before=before: stored() > before, 60)
            time.sleep(chance.random() / 4)  # somewhere within a batch
        finally:
            process.kill()
            process.wait()
    process = subprocess.Popen([sys.executable, "-m", "service.cli", "projector"], env=environment)
    try:
        eventually(lambda: not broker.client.xlen(Keys(broker.namespace, QUEUE).events), 60)
    finally:
        process.terminate()
        process.wait(20)
    with engine.connect() as connection:
        states = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
        each = connection.execute(select(events.c.job_id, func.count()).group_by(events.c.job_id)).all()
    assert {row[0]: row[1] for row in states} == {"succeeded": sent}
    assert Counter(row[1] for row in each) == {3: sent}
    engine.dispose()
