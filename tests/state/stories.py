"""Jobs as the streams tell of them."""

import json
from datetime import datetime, timedelta
from typing import Any

from service.state.event import Event, Head, read


def a_job(job_id: str, state: str, created_at: datetime, actor: str = "t.act", **about: Any) -> list[Event]:
    """The events of a job that has come to this state: sent at this time, and the rest within seconds.

    `about`: payload, tenant, key, queue.
    """
    created = int(created_at.timestamp() * 1000)
    queue = about.get("queue", "email")
    options = {"tenant": about["tenant"]} if "tenant" in about else {}
    fields: dict[str, Any] = {"queue_name": queue, "actor_name": actor, "args": [], "kwargs": about.get("payload", {})}
    message = json.dumps({**fields, "options": options, "message_id": job_id, "message_timestamp": created}).encode()
    sent = f"- {created} 1 3 {actor}\t{about.get('key', '')}\t5\n".encode() + message
    told: list[tuple[str, str | None, bytes]] = [("sent", None, sent)]
    if state != "pending":
        told.append(("started", "host:1:a", f"- {created} 1 3 {actor}".encode()))
    if state in ("succeeded", "dead", "cancelled"):
        known = {"state": state, "type": actor, "attempt": "1", "created_at": str(created), "result": "1"}
        told.append(("settled", None, json.dumps({**known, "started_at": str(created + 1000)}).encode()))
    found: list[Event] = []
    for number, (kind, worker, value) in enumerate(told):
        at = int((created_at + timedelta(seconds=number)).timestamp() * 1000)
        event = read(Head((at << 20) + number, kind, str(at), worker, queue), job_id, value)
        assert event is not None
        found.append(event)
    return found
