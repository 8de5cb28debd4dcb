"""What a job costs in CPU time: a drain, a send and a batch, beside the floor that Dramatiq's own worker loop sets.

    REDIS_URL=redis://127.0.0.1:6390/0 .venv/bin/python bench/cost.py [jobs]

The server at REDIS_URL must be empty and nobody else's. CPU time moves less with the load of the machine than rates do.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("CALLBOARD_WORKER_PORT", "19191")

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.worker import Worker

from service.broker import broker

JOBS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
DATA = {"k": "x" * 180}
done = 0


def count(data, sent_at=None):
    global done
    done += 1


job = dramatiq.actor(count, broker=broker, queue_name="default", actor_name="cost.count")
wide_job = dramatiq.actor(
    count, broker=broker, queue_name="default", actor_name="cost.wide", idempotency_scope="global"
)


def redis_seconds():
    info = broker.client.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def measure(name, act):
    broker.client.flushall()
    prepared = act.prepare() if hasattr(act, "prepare") else None
    redis_before, before, started = redis_seconds(), time.process_time(), time.perf_counter()
    act(prepared)
    own, wall, server = time.process_time() - before, time.perf_counter() - started, redis_seconds() - redis_before
    micro = 1e6 / JOBS
    print(f"{name:34} {own * micro:6.1f} us here {server * micro:6.1f} us in Redis {JOBS / wall:10,.0f} a second")


def run(on, is_over):
    global done
    done = 0
    worker = Worker(on, worker_threads=8)
    worker.start()
    while not is_over():
        time.sleep(0.005)
    return worker


def drain(_):
    drain.worker = run(broker, lambda: done == JOBS and not broker.wire.backlog("default"))


drain.prepare = lambda: broker.send_many([job.message(DATA) for _ in range(JOBS)])


def drain_keyed(_):
    drain(_)


drain_keyed.prepare = lambda: broker.send_many(
    [job.message_with_options(args=(DATA,), idempotency_key=f"cost:{number}") for number in range(JOBS)]
)


def drain_wide(_):
    drain(_)


drain_wide.prepare = lambda: broker.send_many(
    [wide_job.message_with_options(args=(DATA,), idempotency_key=f"cost:{number}") for number in range(JOBS)]
)


def send(_):
    for _ in range(JOBS):
        job.send(DATA)


def batch(_):
    broker.send_many([job.message(DATA) for _ in range(JOBS)])


def floor():
    """Dramatiq's loop with no middleware and a broker in memory: what no broker can be faster than."""
    stub = StubBroker(middleware=[])
    actor = dramatiq.actor(count, broker=stub, queue_name="default")
    for _ in range(JOBS):
        actor.send(DATA)
    before = time.process_time()
    worker = run(stub, lambda: done == JOBS)
    print(f"{'floor: the loop alone, in memory':34} {(time.process_time() - before) * 1e6 / JOBS:6.1f} us here")
    worker.stop()


if __name__ == "__main__":
    if broker.client.dbsize():
        sys.exit("The server is not empty")
    job.send(DATA)
    for _ in range(3):
        floor()
        measure("single sends", send)
        measure("send_many", batch)
        measure("drain, one process of 8 threads", drain)
        drain.worker.stop()
        measure("drain, each with a key of its own", drain_keyed)
        drain.worker.stop()
        measure("drain, each with one for all queues", drain_wide)
        drain.worker.stop()
    broker.client.flushall()
