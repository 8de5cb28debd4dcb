"""`callboard workers`: the live worker processes, and what each runs."""

import argparse
import json
from dataclasses import asdict


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of the list."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """List the live workers."""
    from service.broker import broker
    from service.broker.workers import live_workers
    from service.observe.logs import configure_logs
    from service.settings import get_settings

    settings = get_settings()
    configure_logs(settings)
    settings.require_redis_url()
    workers = live_workers(broker)
    for worker in workers:
        if arguments.json:
            print(json.dumps(asdict(worker), default=lambda time: time.isoformat()))
            continue
        state = "draining" if worker.draining else "working"
        about = f"{worker.threads} threads, {worker.running} running, {state}, version {worker.version}"
        print(f"{worker.worker_id} {','.join(worker.queues)}: {about}")
        for job in worker.jobs:
            seconds = (worker.seen_at - job.since).total_seconds()
            print(f"    {job.job_id} {job.type}, attempt {job.attempt}, for {seconds:.1f} s")
    if not workers and not arguments.json:
        print("None.")
    return 0
