"""What each option costs a job: CPU time of its send in a batch and of its drain, beside a typed job that has none.

    REDIS_URL=redis://127.0.0.1:6390/0 .venv/bin/python bench/options.py [jobs]

The server at REDIS_URL must be empty and nobody else's. One process of 8 threads; the rounds are interleaved.
"""

import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
# The processes of isolated jobs find these actors as any others.
os.environ |= {"CALLBOARD_ACTORS": "options", "PYTHONPATH": f"{HERE}:{HERE.parent}"}
os.environ.setdefault("CALLBOARD_WORKER_PORT", "19191")

from dramatiq.worker import Worker

from service.broker import broker
from service.job import Backoff, RetryAfter, Unique, current_job, job

JOBS = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
ROUNDS = 3
#: A process for each: fewer tell as much.
ISOLATED = 200


def declare(name, body=None, **options):
    def act(*, number: int, text: str = "x" * 160) -> None:
        if body:
            body(number)

    return job(name=f"options.{name}", queue="default", **options)(act)


def fails_once(_):
    if current_job().attempt == 1:
        raise RetryAfter(0)


async def awaits(*, number: int, text: str = "x" * 160) -> None: ...


def notes(number):
    current_job().progress(number, JOBS)


follower = declare("follower")
VARIANTS = {
    "no option": declare("plain"),
    "async def": job(name="options.async", queue="default")(awaits),
    "idempotency_key": declare("key", idempotency_key="options:{number}"),
    "idempotency_key, for all queues": declare("wide", idempotency_key="wide:{number}", idempotency_scope="global"),
    "unique": declare("unique", unique=Unique("options:{number}")),
    "expires": declare("expires", expires=3600),
    "soft_timeout and timeout": declare("limits", soft_timeout=60, timeout=120),
    "settle_at_once": declare("at_once", settle_at_once=True),
    "on_dead, and nothing dies": declare("on_dead", on_dead=follower),
    "a retry": declare("retry", fails_once, backoff=Backoff(delay_seconds=0, cap_seconds=0, jitter=0)),
    "a progress note": declare("note", notes),
    "a follow-up": declare("follow_up", lambda number: follower.send(number=number)),
    'isolation="process"': declare("isolated", isolation="process"),
}


def cpu():
    info = broker.client.info("cpu")
    return time.process_time(), info["used_cpu_user"] + info["used_cpu_sys"]


def measured(act):
    """Return µs here and in Redis, for the send and for the drain of each job."""
    count = ISOLATED if act.actor_name == "options.isolated" else JOBS
    broker.client.flushall()
    messages = [act.message(number=number) for number in range(count)]
    before = cpu()
    assert not broker.send_many(messages).failed
    between = cpu()
    worker = Worker(broker, worker_threads=8)
    worker.start()
    while broker.wire.backlog("default"):
        time.sleep(0.01)
    worker.stop()
    after = cpu()
    micro = 1e6 / count
    return [
        (later - sooner) * micro
        for one, other in ((before, between), (between, after))
        for sooner, later in zip(one, other, strict=True)
    ]


if __name__ == "__main__":
    if broker.client.dbsize():
        sys.exit("The server is not empty")
    best = {}
    for _ in range(ROUNDS):
        for name, act in VARIANTS.items():
            found = measured(act)
            best[name] = min(best.get(name, found), found, key=sum)
    print(f"{'':34} send: here  Redis   drain: here  Redis   of a job without, us")
    base = sum(best["no option"][2:])
    for name, (send_here, send_redis, here, there) in best.items():
        print(
            f"{name:34} {send_here:10.1f} {send_redis:6.1f} {here:13.1f} {there:6.1f} {(here + there) / base:10.2f} x"
        )
    broker.client.flushall()
