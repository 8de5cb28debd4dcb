"""A million delayed messages: what they cost a worker's memory, and whether near-due ones arrive on time behind them.

Run by hand on a Redis server that may be emptied: `REDIS_URL=redis://127.0.0.1:6390/0 .venv/bin/python bench/delays.py`
"""

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import dramatiq
from dramatiq.worker import Worker

from service.broker import broker

FAR = int(os.environ.get("FAR", "1000000"))
NEAR = int(os.environ.get("NEAR", "200"))
lateness: list[float] = []
done = threading.Event()


@dramatiq.actor(broker=broker, actor_name="bench.due", queue_name="default")
def due(at: float) -> None:
    lateness.append(time.time() - at)
    if len(lateness) == NEAR:
        done.set()


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def send() -> None:
    """Send the far ones."""
    for start in range(0, FAR, 10_000):
        messages = [due.message(0.0) for _ in range(min(10_000, FAR - start))]
        assert not broker.send_many(messages, delay_ms=3_600_000).failed


def main() -> None:
    """Print one line for each figure."""
    broker.client.flushall()
    broker.emit_after("process_boot")
    worker = Worker(broker, worker_threads=8)
    worker.start()
    time.sleep(2)
    before = resident_mb()
    started = time.perf_counter()
    subprocess.run([sys.executable, __file__, "send"], check=True)  # by another process: its memory is not the worker's
    print(f"sent {FAR} delayed by an hour: {FAR / (time.perf_counter() - started):.0f} a second")
    time.sleep(5)
    print(f"worker's memory: {before:.1f} MB before, {resident_mb():.1f} MB with them waiting")
    for number in range(NEAR):
        delay = 500 + number * 10
        due.send_with_options(args=(time.time() + delay / 1000,), delay=delay)
    assert done.wait(60)
    lateness.sort()
    print(
        f"near-due behind them: p50 {lateness[NEAR // 2] * 1e3:.1f} ms late, p99 {lateness[int(NEAR * 0.99)] * 1e3:.1f} ms"
    )
    print(f"Redis memory: {broker.client.info('memory')['used_memory'] / 2**20:.0f} MB")
    broker.client.flushall()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["send"]:
        send()
    else:
        main()
