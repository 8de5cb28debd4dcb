"""Write the corpus of this release: what its code leaves in Redis, in every state in which a job can be met there.

    python -m tests.compat.write

Run it by hand when a release is made, from the root of the repository, and commit the folder. Until then write it anew
whenever what is stored changes: the folder is named by the version that is being built. The folder of a release that
was made is never written again.

The other direction is tried at a release too: copy the new folder into the `tests/compat/corpus` of the release before,
and run that release's `tests/compat`.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import dramatiq
from dramatiq.brokers import redis as stock
from dramatiq.message import Message

from tests.compat import store
from tests.servers import RedisServer, redis_flavours

LEASE_SECONDS = 1
FAR_MS = 40 * 365 * 24 * 3600 * 1000


def main() -> None:
    """Write the folder of this version."""
    folder = store.CORPUS / version("callboard")
    with tempfile.TemporaryDirectory() as scratch:
        server = RedisServer(next(iter(redis_flavours().values())), Path(scratch))
        server.start()
        try:
            os.environ["REDIS_URL"] = server.url
            os.environ["CALLBOARD_NAMESPACE"] = "corpus"
            os.environ["CALLBOARD_LEASE_SECONDS"] = str(LEASE_SECONDS)
            sys.path.insert(0, str(Path(__file__).parent.parent / "actor_modules"))
            writer = Writer(server)
            writer.write_all()
            files = {
                "redis": store.dump(writer.broker.client, "corpus"),
                "jobs": writer.jobs,
                "events": writer.events(),
            }
        finally:
            server.kill()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"{len(files['jobs'])} jobs and {len(files['events'])} events in {folder}")


class Writer:
    """Brings jobs into each state through the broker itself, and notes what is to become of each."""

    def __init__(self, server: RedisServer) -> None:
        import compat_jobs

        from service.broker import broker

        self.server = server
        self.broker = broker
        self.actors = compat_jobs
        self.jobs: dict[str, dict[str, Any]] = {}

    def write_all(self) -> None:
        self.payloads()
        self.waiting()
        self.stock_messages()
        self.settled()
        self.keyed()
        self.held()

    def note(self, message: Message[Any], kind: str, end: str, result: Any = None, attempt: int = 1) -> None:
        """Note a job: where it is now, and how it is to end."""
        record = self.broker.find_record(message.message_id)
        assert record is not None, kind
        expected = {"state": end, "attempt": str(attempt)} | ({} if result is None else {"result": result})
        self.jobs[message.message_id] = {"kind": kind, "now": record, "end": expected}

    def send(self, kind: str, message: Message[Any], result: Any, **options: Any) -> None:
        self.broker.send(message, **options)
        self.note(message, kind, "succeeded", result)

    def payloads(self) -> None:
        """Each type that a payload may have."""
        line = self.actors.Line(article=UUID(int=1), price=Decimal("1.10"), colours=[self.actors.Colour.RED])
        values: dict[str, Any] = {
            "text": "ünïcode \u0000 \u2028 \U0001f600 \"'\\ \n",
            "number": -(2**63) - 1,
            "fraction": 0.1,
            "flag": True,
            "nothing": None,
            "key": UUID(int=2**128 - 1),
            "moment": datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
            "local": datetime(2026, 2, 3, 4, 5, 6),
            "day": date(2024, 2, 29),
            "clock": clock(23, 59, 59, 999999),
            "span": timedelta(days=1, microseconds=1),
            "amount": Decimal("12345678901234567890.10"),
            "colour": self.actors.Colour.RED,
            "raw": bytes(range(256)),
            "word": "b",
            "items": [1, 2, 3],
            "pair": (1, "two"),
            "names": {"one"},
            "table": {"a": Decimal("0.00")},
            "maybe": UUID(int=3),
            "anything": {"deep": [{"er": None}]},
            "line": line,
        }
        typed = self.actors.typed
        self.send("payload", typed.message(**values), typed.fn(**values))
        self.send("payload, by alias", typed.message(**values).copy(actor_name="typed-compat"), typed.fn(**values))
        order = self.actors.Order(orderNumber=5, lines=[line], placed_at=datetime(2026, 1, 2, tzinfo=UTC))
        self.send("payload, model", self.actors.order.message(order), self.actors.order.fn(order))

    def waiting(self) -> None:
        """What is ready or delayed, with the options that a message may carry."""
        plain, attempt = self.actors.plain, self.actors.attempt
        self.send(
            "plain",
            plain.message(1, "two", [3], four={"five": None}),
            repr(((1, "two", [3]), {"four": {"five": None}})),
        )
        for priority in (0, 9, 1000):
            self.send("priority", attempt.message_with_options(priority=priority), 1)
        options = {"max_retries": 1, "min_backoff": 1, "max_backoff": 5, "time_limit": 60_000, "max_deliveries": 1}
        self.send("options", attempt.message_with_options(**options, tenant="acme"), 1)
        self.send("delayed", attempt.message(), 1, delay_ms=20)
        self.send("sent once", attempt.message(), 1, once_within_seconds=3600)
        far = attempt.message()
        self.broker.send(far, delay_ms=FAR_MS)
        self.note(far, "delayed for long", "scheduled", attempt=0)
        pipe = dramatiq.pipeline([plain.message(1), plain.message(2)], broker=self.broker)
        self.send("pipeline", pipe.messages[0], repr(((1,), {})))
        copied = attempt.message()
        self.send("sent twice", copied, 1)
        self.broker.send(copied)

    def stock_messages(self) -> None:
        """Messages as Dramatiq's own Redis broker makes them, on their way through ours: only the queue's name is ours.

        Theirs calls the queue of what waits `default.DQ`; where a message lies says that it waits, here.
        """
        theirs = stock.RedisBroker(url=self.server.url, middleware=[])
        for delay in (None, 20):
            made = theirs.enqueue(self.actors.plain.message("stock", delay), delay=delay)
            assert {"redis_message_id", "eta"} - made.options.keys() == ({"eta"} if delay is None else set())
            message = made.copy(queue_name="default")
            self.send("stock", message, repr((("stock", delay), {})), delay_ms=delay)
        theirs.close()

    def settled(self) -> None:
        """What a worker has settled: final events, a dead letter, a retry, a job that is left to others."""
        from service.broker.outcome import Dead, Failure, RetryLater, Succeeded
        from service.broker.settlement import left_to_others, released

        failure = Failure("ValueError", "nö \\u0000", "Traceback ...\n")
        done = self.run("email", lambda each: Succeeded('{"a": "ü"}'))
        self.note(done, "succeeded", "succeeded", {"a": "ü"})
        self.note(self.run("email", lambda each: Dead(failure)), "dead", "dead")
        retried = self.run("email", lambda each: RetryLater(each.copy_for_retry("Traceback ..."), 20, failure))
        self.note(retried, "retrying", "succeeded", 2, attempt=2)
        for kind, queue, settlement in (
            ("left to others", "email", lambda each: left_to_others(each.lease, each.actor_name, each.encode(), 20)),
            ("given back", "media", released),
        ):
            message, delivery = self.fetch_new(queue)
            self.broker.settle(queue, [settlement(delivery)])
            self.note(message, kind, "succeeded", 1)

    def keyed(self) -> None:
        """Idempotency keys: one whose job has succeeded, and one whose holder is dead while another waits for it."""
        from service.broker.once import remembered
        from service.broker.outcome import Succeeded
        from service.broker.settlement import settlement_of

        def send(key: str, **options: Any) -> Message[Any]:
            message = self.actors.attempt.message_with_options(idempotency_key=key).copy(queue_name="webhooks")
            self.broker.send(message, **options)
            return message

        done = send("key of the corpus: dönö")
        [delivery], _ = self.broker.fetch("webhooks", 1)
        delivery.outcome = Succeeded("1")
        self.broker.settle("webhooks", [remembered(settlement_of(delivery), {})])
        self.note(done, "has its key", "succeeded", 1)
        holder, waiting = send("k"), send("k")
        assert len(self.broker.fetch("webhooks", 2)[0]) == 1
        self.note(holder, "holds its key", "succeeded", 1)
        self.note(waiting, "waits for its key", "succeeded", 1)
        duplicate = send("key of the corpus: dönö", delay_ms=2000)  # later than what is fetched here
        self.note(duplicate, "duplicate", "succeeded", 1)

    def held(self) -> None:
        """What workers held when they died, which nobody has noticed yet, and what their deaths had left."""
        from service.broker.outcome import Crashed, Failure

        crashed = self.run("ai", lambda each: Crashed(Failure("crashed", "signal 9", "")))
        self.note(crashed, "crashed alone", "succeeded", 1)
        lapsed, _ = self.fetch_new("reports")
        last, _ = self.fetch_new("high-priority")
        held, _ = self.fetch_new("webhooks")
        self.note(held, "leased", "succeeded", 1)
        for _ in range(2):
            time.sleep(LEASE_SECONDS + 0.1)
            for delivery in self.broker.fetch("high-priority", 1)[0]:
                self.broker.begin(delivery.lease)
        self.broker.fetch("reports", 1)
        self.note(lapsed, "leased after a lapse", "succeeded", 1)
        # Its third worker is dead too when this is read: it may not start again.
        self.note(last, "leased for the last time", "dead")
        time.sleep(LEASE_SECONDS + 0.1)

    def run(self, queue: str, outcome: Callable[[Any], Any]) -> Message[Any]:
        from service.broker.settlement import settlement_of

        message, delivery = self.fetch_new(queue)
        delivery.outcome = outcome(delivery)
        self.broker.settle(queue, [settlement_of(delivery)])
        return message

    def fetch_new(self, queue: str) -> tuple[Message[Any], Any]:
        message = self.actors.attempt.message().copy(queue_name=queue)
        self.broker.send(message)
        [delivery], _ = self.broker.fetch(queue, 1)
        assert delivery.message_id == message.message_id
        return message, delivery

    def events(self) -> list[dict[str, str]]:
        """Every event as this release reads it."""
        from service.broker import events
        from service.broker.keys import Keys
        from service.queues import QUEUES

        found: list[dict[str, str]] = []
        for queue in QUEUES:
            for entry, fields in self.broker.client.xrange(Keys("corpus", queue).events):
                texts = {name.decode(): value.decode() for name, value in fields.items()}
                found += events.read(entry.decode(), texts, queue)
        return found


if __name__ == "__main__":
    main()
