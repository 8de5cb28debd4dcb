"""The process of a suspect: reads one message, runs its actor, writes the outcome, ends. See quarantine.py."""

import importlib
import os
import pickle
import sys
from typing import Any, cast

from dramatiq.middleware import AsyncIO

from service.broker import broker
from service.broker.messages import decode_message
from service.middleware.context import JobContext, set_current_job
from service.middleware.quarantine import RemoteError
from service.observe.logs import configure_logs
from service.settings import get_settings


def main() -> None:
    """Run one job. Standard output belongs to the answer, so the job's own goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, data, attempt = pickle.load(sys.stdin.buffer)  # noqa: S301 - the worker wrote it
    configure_logs(get_settings())
    importlib.import_module(module)
    message = decode_message(data)
    actor = broker.get_actor(message.actor_name)
    for middleware in broker.middleware:
        if isinstance(middleware, AsyncIO):
            cast("Any", middleware).before_worker_boot(broker, None)  # the event loop of `async def` actors
    set_current_job(JobContext(message.message_id, actor.actor_name, message.queue_name, attempt))
    answer: tuple[bool, Any]
    try:
        answer = (True, actor(*message.args, **message.kwargs))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is to treat it
        answer = (False, error)
    out.write(_encode(answer))
    out.flush()
    os._exit(0)


def _encode(answer: tuple[bool, Any]) -> bytes:
    try:
        encoded = pickle.dumps(answer)
        pickle.loads(encoded)  # noqa: S301 - what can be packed may still not be unpacked
    except Exception:  # noqa: BLE001 - foreign objects may do anything
        succeeded, value = answer
        text = f"{type(value).__name__}: {value}"[:10_000]
        return pickle.dumps((succeeded, text if succeeded else RemoteError(text)))
    return encoded


if __name__ == "__main__":
    main()
