"""How fast the projector stores events, and how far it lags behind at 1,000 jobs a second.

    REDIS_URL=redis://127.0.0.1:6390/0 DATABASE_URL=postgresql://... .venv/bin/python bench/projector.py [jobs] [seconds]

The Redis server must be empty and the database of nobody else: it is migrated. Three events a job: sent by `send_many`,
run by a worker's own calls (fetch and settle, with no actor's code).
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("CALLBOARD_WORKER_PORT", "19191")

import dramatiq

from service.broker import broker
from service.broker.keys import Keys
from service.broker.outcome import Succeeded
from service.broker.settlement import settlement_of
from service.settings import get_settings
from service.state.database import engine_for
from service.state.migrate import upgrade
from service.state import projector as projecting
from service.state.projector import Projector
from service.state.states import State

JOBS = int(sys.argv[1]) if sys.argv[1:2] not in ([], ["load"]) else 30_000
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
RATE = 1000
DATA = {"k": "x" * 180}


@dramatiq.actor(broker=broker, queue_name="default", actor_name="bench.nothing")
def nothing(data): ...


def settle(count):
    ended = 0
    while ended < count:
        deliveries, _ = broker.fetch("default", min(100, count - ended))
        for delivery in deliveries:
            delivery.outcome = Succeeded("null")
        if deliveries:
            broker.settle("default", [settlement_of(each) for each in deliveries])
        ended += len(deliveries)


def throughput(projector, engine):
    messages = [nothing.message(DATA) for _ in range(JOBS)]
    broker.send_many(messages)
    settle(JOBS)
    started, own = time.perf_counter(), time.process_time()
    with engine.connect() as connection:
        while projector.project_batch(connection):
            pass
    wall, own = time.perf_counter() - started, time.process_time() - own
    rate, micro = 3 * JOBS / wall, 1e6 / (3 * JOBS)
    print(f"{3 * JOBS} events, {JOBS} jobs: {rate:,.0f} events/s; {own * micro:.1f} us of CPU here for each")


def load(seconds):
    """A process of its own: sends and settles RATE jobs a second, and prints nothing."""
    started = time.perf_counter()
    done = 0
    while (now := time.perf_counter() - started) < seconds:
        due = int(now * RATE) - done
        if due > 0:
            broker.send_many([nothing.message(DATA) for _ in range(due)])
            settle(due)
            done += due
        time.sleep(0.005)


def lag(projector):
    """Milliseconds from the end of a job in Redis until the commit of the row that says so, of all jobs."""
    late = []
    store = projecting.store

    def timed(connection, events):
        applied = store(connection, events)
        now = time.time() * 1000  # Redis and this process are on one machine: one clock
        late.extend(now - event.at for event in events if event.state is State.SUCCEEDED)
        return applied

    projecting.store = timed
    stop = threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    subprocess.run([sys.executable, __file__, "load", str(SECONDS)], env=os.environ, check=True)
    stop.set()
    thread.join()
    late.sort()
    print(
        f"{len(late)} jobs in {SECONDS} s: lag p50 {late[len(late) // 2]:.0f} ms, "
        f"p99 {late[int(len(late) * 0.99)]:.0f} ms, most {late[-1]:.0f} ms"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load(int(sys.argv[2]))
        sys.exit()
    database_url = get_settings().require_database_url()
    upgrade(database_url)
    engine = engine_for(database_url)
    projector = Projector(broker, engine)
    for _ in range(3):
        throughput(projector, engine)
    if SECONDS:
        lag(projector)
